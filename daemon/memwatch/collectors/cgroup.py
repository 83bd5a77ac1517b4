"""The limit that a container or a unit lives under, and what it uses of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memwatch.collector import Findings, Roots, Unavailable, Unreadable, read_once
from memwatch.collectors._cgroup_mounts import Version, home_of, parse_figure
from memwatch.collectors._cgroups import in_container
from memwatch.model import Absent, Share, ShareKind

Scope = Literal["auto", "host", "cgroup"]

_MEM_TOTAL = re.compile(rb"^MemTotal: +(\d{1,19}) kB\n", re.MULTILINE)

NOTE = "does not include GPU memory on unified machines"


@dataclass(frozen=True, slots=True)
class Group:
    """One cgroup with its limit (None: no limit) and what counts against it."""

    folder: Path
    limit_bytes: int | None
    used_bytes: int


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


class Collector:
    name = "cgroup"
    period_seconds = 5.0
    # Reading memory.stat sums over all processors and descendants: milliseconds on a large machine.
    may_block = True

    def __init__(self, roots: Roots, scope: Scope = "auto") -> None:
        self._roots = roots
        self._contained = in_container(roots)
        if scope == "host" or (scope == "auto" and not self._contained):
            raise Unavailable(f"host scope: scope is {scope!r} and this is {self._here}; `cgroup` would show it")
        self._groups()

    @property
    def _here(self) -> str:
        return "a container" if self._contained else "no container"

    def collect(self) -> Findings:
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
        return Findings(shares=(share,))

    def close(self) -> None:
        pass

    def _groups(self) -> tuple[Version, list[Group]]:
        """The groups that count memory, outermost first. Asked each time: a process can be moved."""
        folder = self._roots.procfs / "self"
        try:
            cgroup, mountinfo = (folder / "cgroup").read_bytes(), (folder / "mountinfo").read_bytes()
        except OSError as error:
            raise Unavailable(f"{error.filename}: {error.strerror}") from error
        home = home_of(cgroup, mountinfo, self._roots)
        groups = [group for path in home.folders if (group := _read_group(home.version, path))]
        if not groups:
            raise Unavailable(f"{home.mount / home.way}: no {home.version.usage} from there up")
        return home.version, groups


def _read_group(version: Version, folder: Path) -> Group | None:
    """None where memory is not counted: version 2 has no such files at its root, nor where not delegated."""
    usage, limit = read_once(folder / version.usage), read_once(folder / version.limit)
    statistics = read_once(folder / "memory.stat")
    if usage is None or limit is None or statistics is None:
        return None
    stat = parse_stat(statistics)
    # Version 1 also tells of ancestors that cannot be seen from inside.
    limits = [parse_limit(limit), stat.get("hierarchical_memory_limit")]
    smallest = min([value for value in limits if value is not None], default=None)
    return Group(folder, smallest, used_of(version, parse_figure(usage), stat))
