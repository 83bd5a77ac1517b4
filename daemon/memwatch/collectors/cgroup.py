"""The limit that a container or a unit lives under, and what it uses of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from memwatch.collector import Findings, Roots, Unavailable, Unreadable, read_once
from memwatch.collectors._cgroup_mounts import Home, Version, home_of, parse_figure
from memwatch.collectors._cgroups import in_container
from memwatch.model import Absent, Share, ShareKind

Scope = Literal["auto", "host", "cgroup"]

_MEM_TOTAL = re.compile(rb"^MemTotal: +(\d{1,19}) kB\n", re.MULTILINE)

NOTE = "does not include GPU memory on unified machines"


class Group(Struct, frozen=True):
    """One cgroup with its limit (None: no limit), what counts against it, and kills at it (None: not counted)."""

    folder: Path
    limit_bytes: int | None
    used_bytes: int
    oom_kills: int | None = None


def parse_limit(data: bytes) -> int | None:
    """A limit in bytes, or None for `max`. Version 1 writes 2^63 less a page instead, which is above any RAM."""
    text = data.strip()
    if text == b"max":
        return None
    return parse_figure(data)


def parse_size(meminfo: bytes) -> int:
    """The machine's size, which a limit has to be below to be one."""
    found = _MEM_TOTAL.search(meminfo)
    if found is None:
        raise Unreadable("meminfo has no line MemTotal")
    return int(found[1]) << 10


def parse_stat(data: bytes) -> dict[str, int]:
    figures: dict[str, int] = {}
    for line in data.split(b"\n")[:-1]:
        key, _, value = line.partition(b" ")
        if value.isdigit() and len(value) <= 20:
            figures[key.decode("ascii", "replace")] = int(value)
    return figures


def used_of(version: Version, usage: int, stat: dict[str, int]) -> int:
    """The two files are not read at the same instant: more cache than usage means all of it is cache."""
    if version.reclaimable[0] not in stat:
        raise Unreadable(f"cgroup: memory.stat has no line {version.reclaimable[0]}")
    return max(0, usage - sum(stat.get(key, 0) for key in version.reclaimable))


def binding(groups: Iterable[Group], size_bytes: int) -> Group | None:
    """The group that sets the smallest limit below `size_bytes`; of equals the outermost, as it fills first."""
    limited = [group for group in groups if group.limit_bytes is not None and group.limit_bytes < size_bytes]
    return min(limited, key=lambda group: group.limit_bytes or 0, default=None)


# A container of 1 GiB can fill in seconds: looked at once a second, and ten times near its end. One without a limit
# ends with the machine, which is looked at anyway. Reading memory.stat sums over all processors and descendants,
# milliseconds on a large machine: it may take 2 % of a processor.
UNLIMITED_SECONDS, CALM_SECONDS, NEAR_SECONDS = 10.0, 1.0, 0.1
NEAR_RATIO = 0.57
MOST_CPU = 0.02


def period_of(group: Group | None, cpu_seconds: float) -> float:
    """How long to wait between two looks at the group that limits us, if any does, when one look costs so much."""
    if group is None or not group.limit_bytes:
        return UNLIMITED_SECONDS
    near = group.used_bytes >= NEAR_RATIO * group.limit_bytes
    return max(NEAR_SECONDS if near else CALM_SECONDS, cpu_seconds / MOST_CPU)


class Collector:
    name = "cgroup"
    may_block = True

    def __init__(self, roots: Roots, scope: Scope = "auto") -> None:
        self.period_seconds = CALM_SECONDS
        self._roots = roots
        self._home: tuple[tuple[bytes, bytes], Home] | None = None
        self._contained = in_container(roots)
        if scope == "host" or (scope == "auto" and not self._contained):
            raise Unavailable(f"host scope: scope is {scope!r} and this is {self._here}; `cgroup` would show it")
        self._groups()

    @property
    def _here(self) -> str:
        return "a container" if self._contained else "no container"

    def collect(self) -> Findings:
        started = time.thread_time()
        version, groups = self._groups()
        size = parse_size((self._roots.procfs / "meminfo").read_bytes())
        group, word = binding(groups, size), "Container" if self._contained else "Unit"
        share = Share(
            id="cgroup",
            kind=ShareKind.CGROUP,
            label=f"{word} limit" if group else word,
            within="ram",
            used_bytes=(group or groups[-1]).used_bytes,
            limit_bytes=Absent.NOT_SUPPORTED if group is None or group.limit_bytes is None else group.limit_bytes,
            source=version.source,
            quality=version.quality,
            note=NOTE if group else f"no limit is set; {NOTE}",
        )
        self.period_seconds = period_of(group, time.thread_time() - started)
        return Findings(shares=(share,), cgroup_oom_kills_total=group.oom_kills if group else None)

    def close(self) -> None:
        pass

    def _groups(self) -> tuple[Version, list[Group]]:
        """The groups that count memory, outermost first. Asked each time: a process can be moved."""
        folder = self._roots.procfs / "self"
        try:
            said = (folder / "cgroup").read_bytes(), (folder / "mountinfo").read_bytes()
        except OSError as error:
            raise Unavailable(f"{error.filename}: {error.strerror}") from error
        if self._home is None or self._home[0] != said:
            self._home = said, home_of(*said, self._roots)
        home = self._home[1]
        groups = [group for path in home.folders if (group := read_group(home.version, path))]
        if not groups:
            raise Unavailable(f"{home.mount / home.way}: no {home.version.usage} from there up")
        return home.version, groups


def read_group(version: Version, folder: Path) -> Group | None:
    """None where memory is not counted: version 2 has no such files at its root, nor where not delegated."""
    usage, limit = read_once(folder / version.usage), read_once(folder / version.limit)
    statistics = read_once(folder / "memory.stat")
    if usage is None or limit is None or statistics is None:
        return None
    stat = parse_stat(statistics)
    # Version 1 also tells of ancestors that cannot be seen from inside.
    limits = [parse_limit(limit), stat.get("hierarchical_memory_limit")]
    smallest = min([value for value in limits if value is not None], default=None)
    # `oom_kill` is counted since Linux 4.13.
    kills = parse_stat(read_once(folder / version.events) or b"").get("oom_kill")
    return Group(folder, smallest, used_of(version, parse_figure(usage), stat), kills)
