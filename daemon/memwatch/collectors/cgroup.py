"""The limit that a container or a unit lives under, and what it uses of it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from memwatch.collectors.base import BaseCollector, Host
from memwatch.findings import Findings
from memwatch.linux.cgroup_mounts import V1, V2, CgroupVersion, find_own_cgroup, parse_figure
from memwatch.linux.cgroups import in_container
from memwatch.linux.files import KeptFile, ParseError, Roots, SourceUnavailable, is_shortage, kept_file
from memwatch.model import Absent, Share, ShareKind
from memwatch.options import Doc, SwitchableOptions

Scope = Literal["auto", "host", "cgroup"]

_STAT_KEYS = sorted({*V1.reclaimable, *V2.reclaimable, "hierarchical_memory_limit", "oom_kill"})
_STAT = re.compile(rb"^(%s) (\d{1,20})\n" % "|".join(_STAT_KEYS).encode(), re.MULTILINE)
_MEM_TOTAL = re.compile(rb"^MemTotal: +(\d{1,19}) kB\n", re.MULTILINE)

NOTE = "does not include GPU memory on unified machines"


class CgroupLimit(Struct, frozen=True):
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
        raise ParseError("meminfo has no line MemTotal")
    return int(found[1]) << 10


def parse_stat(data: bytes) -> dict[str, int]:
    """The lines of memory.stat and of the events that are wanted of any version, by their key."""
    return {key.decode(): int(value) for key, value in _STAT.findall(data)}


def compute_used(version: CgroupVersion, usage: int, stat: dict[str, int]) -> int:
    """The two files are not read at the same instant: more cache than usage means all of it is cache."""
    if version.reclaimable[0] not in stat:
        raise ParseError(f"cgroup: memory.stat has no line {version.reclaimable[0]}")
    return max(0, usage - sum(stat.get(key, 0) for key in version.reclaimable))


def limiting_cgroup(groups: Iterable[CgroupLimit], size_bytes: int) -> CgroupLimit | None:
    """The group that sets the smallest limit below `size_bytes`; of equals the outermost, as it fills first."""
    limited = [group for group in groups if group.limit_bytes is not None and group.limit_bytes < size_bytes]
    return min(limited, key=lambda group: group.limit_bytes or 0, default=None)


# A container of 1 GiB can fill in seconds: looked at once a second, and ten times near its end. One without a limit
# ends with the machine, which is looked at anyway. Reading memory.stat sums over all processors and descendants,
# milliseconds on a large machine: it may take 2 % of a processor.
UNLIMITED_SECONDS, CALM_SECONDS, NEAR_SECONDS = 10.0, 1.0, 0.1
NEAR_RATIO = 0.57
MAX_CPU_RATIO = 0.02
# How often to look where the hierarchy is mounted, which groups of it count memory, and how large the machine is.
RESCAN_SECONDS = 60.0


def compute_period(group: CgroupLimit | None, cpu_seconds: float) -> float:
    """How long to wait between two looks at the group that limits us, if any does, when one look costs so much."""
    if group is None or not group.limit_bytes:
        return UNLIMITED_SECONDS
    near = group.used_bytes >= NEAR_RATIO * group.limit_bytes
    return max(NEAR_SECONDS if near else CALM_SECONDS, cpu_seconds / MAX_CPU_RATIO)


class GroupFiles:
    """The files of one cgroup, which stay open. OSError where it counts no memory: version 2 has no such files at
    its root, nor where that is not delegated. `oom_kill` is counted since Linux 4.13.
    """

    def __init__(self, version: CgroupVersion, folder: Path) -> None:
        self._version, self._folder = version, folder
        self._events: KeptFile | None = None
        self._open: list[KeptFile] = []
        try:
            for name in (version.usage, version.limit, "memory.stat"):
                self._open.append(KeptFile(folder / name))
            with suppress(FileNotFoundError, PermissionError):  # kills are not counted then; the limit is
                self._events = KeptFile(folder / version.events, 512)
            self.read()
        except BaseException:
            self.close()
            raise

    def read(self) -> CgroupLimit:
        usage, limit, statistics = [file.read() for file in self._open]
        stat = parse_stat(statistics)
        # Version 1 also tells of ancestors that cannot be seen from inside.
        limits = [parse_limit(limit), stat.get("hierarchical_memory_limit")]
        smallest = min([value for value in limits if value is not None], default=None)
        kills = parse_stat(self._events.read()).get("oom_kill") if self._events else None
        return CgroupLimit(self._folder, smallest, compute_used(self._version, parse_figure(usage), stat), kills)

    def close(self) -> None:
        for file in (*self._open, self._events):
            if file is not None:
                file.close()


def open_files(version: CgroupVersion, folder: Path) -> GroupFiles | None:
    """None where memory is not counted. Raises OSError where there is no room for more open files."""
    try:
        return GroupFiles(version, folder)
    except OSError as error:
        if is_shortage(error):
            raise
        return None


class Options(SwitchableOptions, frozen=True, kw_only=True):
    scope: Annotated[
        Scope,
        Doc(
            'Whose limits count: "cgroup" those around memwatchd itself, "host" none, "auto" cgroup in a container '
            "and host outside."
        ),
    ] = "auto"


class Collector(BaseCollector):
    name = "cgroup"
    may_block = True
    options = Options

    def __init__(self, roots: Roots, scope: Scope = "auto", clock: Callable[[], float] = time.monotonic) -> None:
        self.period_seconds = CALM_SECONDS
        self._roots = roots
        self._clock = clock
        self._contained = in_container(roots)
        if scope == "host" or (scope == "auto" and not self._contained):
            raise SourceUnavailable(
                f"host scope: scope is {scope!r} and this is {self._here}; `cgroup` would show it"
            )
        self._own = kept_file(roots.procfs / "self/cgroup")
        self._said = b""
        self._looked_at = -math.inf
        self._version = V2
        self._size = 0
        self._groups: list[GroupFiles] = []
        try:
            self._rescan(self._own.read())
        except BaseException:
            self.close()
            raise

    @property
    def _here(self) -> str:
        return "a container" if self._contained else "no container"

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.options_for(Options).scope)

    def collect(self) -> Findings:
        started = time.thread_time()
        groups = self._read()
        group, word = limiting_cgroup(groups, self._size), "Container" if self._contained else "Unit"
        share = Share(
            id="cgroup",
            kind=ShareKind.CGROUP,
            label=f"{word} limit" if group else word,
            within="ram",
            used_bytes=(group or groups[-1]).used_bytes,
            limit_bytes=Absent.NOT_SUPPORTED if group is None or group.limit_bytes is None else group.limit_bytes,
            source=self._version.source,
            quality=self._version.quality,
            note=NOTE if group else f"no limit is set; {NOTE}",
        )
        self.period_seconds = compute_period(group, time.thread_time() - started)
        return Findings(shares=(share,), cgroup_oom_kills_total=group.oom_kills if group else None)

    def close(self) -> None:
        self._own.close()
        self._close_files()

    def _read(self) -> list[CgroupLimit]:
        """The groups that count memory, outermost first. Where we are is asked each time: processes are moved."""
        cgroup = self._own.read()
        if cgroup == self._said and self._clock() - self._looked_at < RESCAN_SECONDS:
            with suppress(OSError):  # a group that is gone, or counts no more
                return [group.read() for group in self._groups]
        self._rescan(cgroup)
        return [group.read() for group in self._groups]

    def _rescan(self, cgroup: bytes) -> None:
        """Open what counts memory from where we are up, outermost first."""
        self._close_files()
        home = find_own_cgroup(cgroup, self._read_proc_file("self/mountinfo"), self._roots)
        self._size, self._version = parse_size(self._read_proc_file("meminfo")), home.version
        for folder in home.folders:
            if (files := open_files(home.version, folder)) is not None:
                self._groups.append(files)
        if not self._groups:
            raise SourceUnavailable(f"{home.mount / home.path}: no {home.version.usage} from there up")
        self._said, self._looked_at = cgroup, self._clock()

    def _read_proc_file(self, name: str) -> bytes:
        try:
            return (self._roots.procfs / name).read_bytes()
        except OSError as error:
            if is_shortage(error):
                raise
            raise SourceUnavailable(f"{error.filename}: {error.strerror}") from error

    def _close_files(self) -> None:
        groups, self._groups, self._said = self._groups, [], b""
        for group in groups:
            group.close()
