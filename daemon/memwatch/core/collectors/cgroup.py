"""Memory limit and usage of the cgroup of a container or unit."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroup_kills import LimitKills
from memwatch.core.linux.cgroup_mounts import (
    V1,
    V2,
    CgroupVersion,
    charges_gpu,
    find_own_cgroup,
    parse_figure,
    parse_limit,
)
from memwatch.core.linux.cgroups import in_container
from memwatch.core.linux.files import KeptFile, ParseError, Roots, SourceUnavailable, is_shortage, kept_file
from memwatch.core.model import CGROUP_NOTE, OWN_CGROUP, RAM, Absent, Bytes, Quality, Share, ShareKind
from memwatch.core.options import SwitchableOptions
from memwatch.core.printable import printable

Scope = Literal["auto", "host", "cgroup"]

_MEM_TOTAL = re.compile(rb"^MemTotal: +(\d{1,19}) kB\n", re.MULTILINE)

# The kernel's documentation calls memory.high the "memory usage throttle limit".
NO_LIMIT_VISIBLE = "no limit is set; those of the cgroups around it are not visible here"
THROTTLE_LIMIT, THROTTLE_FILE = "throttle limit", "memory.high"
CHARGED_NOTE = "includes GPU memory in System RAM"
NO_CACHE = "includes page cache: the figures of the cache exceed the use, or are missing"


def parse_size(meminfo: bytes) -> int:
    """Parse the machine's memory size. A cgroup limit counts only if it is below that."""
    found = _MEM_TOTAL.search(meminfo)
    if found is None:
        raise ParseError("meminfo has no line MemTotal")
    return int(found[1]) << 10


# A container of 1 GiB can fill in seconds: it is read once a second, and ten times a second near its limit. A
# container without a limit can use the whole machine, which is watched anyway. Reading memory.stat sums over all
# CPUs and descendants, which takes milliseconds on a large machine: it may use 2% of one CPU.
UNLIMITED_SECONDS, CALM_SECONDS, NEAR_SECONDS = 10.0, 1.0, 0.1
NEAR_RATIO = 0.57
MAX_CPU_RATIO = 0.02
# While it fills, it is read before 5 % of the rest is gone, as System RAM is.
MARGIN_RATIO, MIN_SECONDS = 0.04, 0.005
# Interval for reading the mount point, the groups with memory accounting, and the machine's size again.
RESCAN_SECONDS = 60.0


def compute_period(group: CgroupLimit | None, cpu_seconds: float, growth: float = 0.0) -> float:
    """Return the interval between two reads of the limiting group.

    `cpu_seconds`: CPU time of one read; `growth`: bytes that it grew in a second.
    """
    limit = None if group is None else group.lowest_bytes
    if group is None or isinstance(limit, Absent) or not limit:
        return UNLIMITED_SECONDS
    if isinstance(group.used_bytes, Absent):
        return max(CALM_SECONDS, cpu_seconds / MAX_CPU_RATIO)
    longest = NEAR_SECONDS if group.used_bytes >= NEAR_RATIO * limit else CALM_SECONDS
    margin = MARGIN_RATIO * max(0, limit - group.used_bytes)
    seconds = max(MIN_SECONDS, margin / growth) if growth > 0 else longest
    return max(min(longest, seconds), cpu_seconds / MAX_CPU_RATIO)


class UnreadGroup(Struct, frozen=True):
    """A cgroup whose limit exists and cannot be read."""

    name: str
    error: OSError

    @property
    def reason(self) -> Absent:
        return Absent.NOT_PERMITTED if isinstance(self.error, PermissionError) else Absent.NOT_AVAILABLE


def open_files(version: CgroupVersion, folder: Path) -> GroupFiles | OSError | None:
    """Open the files. None if there are none, as memory is not accounted; the error if one cannot be read.

    Raises OSError if file descriptors run out.
    """
    try:
        return GroupFiles(version, folder)
    except OSError as error:
        if is_shortage(error):
            raise
        return None if isinstance(error, FileNotFoundError) else error


def describe_unread(groups: Sequence[UnreadGroup]) -> str:
    """Return which limits are unknown, as a part of a sentence."""
    first = groups[0]
    others = f" and of {len(groups) - 1} more" if groups[1:] else ""
    return f"the limit of {first.name}{others} cannot be read ({first.error.strerror}) and may be lower"


def describe_throttle(group: CgroupLimit) -> str:
    """Return the meaning of a limit that kills no process, as a part of a sentence."""
    limit = group.limit_bytes
    killed = f"kills only at memory.max, {units.size(limit)}" if isinstance(limit, int) else "kills none"
    return f"{THROTTLE_FILE}: above it the kernel slows the processes down, and {killed}"


def _name_of(folder: Path, mount: Path) -> str:
    return "/" if folder == mount else printable(f"/{folder.relative_to(mount)}")


class Options(SwitchableOptions, frozen=True, kw_only=True):
    scope: Annotated[
        Scope,
        Doc(
            'Cgroup limits to read: "cgroup" for those of memwatchd\'s own cgroup and its ancestors, "host" for '
            'none, "auto" for "cgroup" in a container and "host" outside.'
        ),
    ] = "auto"


class Collector(BaseCollector):
    name = "cgroup"
    may_block = True
    options: type[Options] = Options

    def __init__(self, roots: Roots, scope: Scope = "auto", clock: Callable[[], float] = time.monotonic) -> None:
        self.period_seconds: float = CALM_SECONDS
        self._roots = roots
        self._clock = clock
        self._contained = in_container(roots)
        if scope == "host" or (scope == "auto" and not self._contained):
            raise SourceUnavailable(
                f'host scope: scope is "{scope}" and this is {self._here}; set scope = "cgroup" to read its limits'
            )
        self._own = kept_file(roots.procfs / "self/cgroup")
        self._own_cgroup = b""
        self._looked_at = -math.inf
        self._version = V2
        self._size = 0
        self._has_hidden_groups = False
        self._groups: list[GroupFiles] = []
        self._unread: list[UnreadGroup] = []
        self._used: tuple[float, int] | None = None
        self._kills = LimitKills()
        try:
            self._rescan(self._own.read())
        except BaseException:
            self.close()
            raise

    @property
    def _here(self) -> str:
        return "a container" if self._contained else "not a container"

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.options_for(Options).scope)

    def collect(self) -> Findings:
        started = time.thread_time()
        groups = [self._bounded(group) for group in self._read()]
        group = limiting_cgroup(groups, self._size)
        shown = group or (groups[-1] if groups else None)
        share = self._build_share(group, shown, any(one.is_odd for one in groups))
        growth = self._growth(shown.used_bytes) if shown else 0.0
        self.period_seconds = compute_period(group, time.thread_time() - started, growth)
        return Findings(
            shares=(share,),
            cgroup_oom_kills_total=self._count_kills(groups),
            rejected=sum(one.rejected for one in groups),
        )

    def _count_kills(self, groups: Sequence[CgroupLimit]) -> int | None:
        group = killing_cgroup(groups, self._size)
        return self._kills.count(group.folder, group.oom_kills, self._version) if group else None

    def _bounded(self, group: CgroupLimit) -> CgroupLimit:
        """Reject a use that exceeds the machine's memory. The limit stays."""
        if isinstance(group.used_bytes, int) and group.used_bytes > self._size:
            return replace(group, used_bytes=Absent.INCONSISTENT)
        return group

    def _build_share(self, group: CgroupLimit | None, shown: CgroupLimit | None, some_odd: bool) -> Share:
        """Build the share of the limiting group, else of the own one. A limit that cannot be read is not "none".

        `some_odd`: the limit of one of the groups is not a number.
        """
        word = "Container" if self._contained else "Unit"
        no_limit = Absent.INCONSISTENT if some_odd else Absent.NOT_SUPPORTED
        unread = self._unread[-1].reason if self._unread else no_limit
        with_cache = shown is not None and shown.includes_cache
        limit, throttles = (group.lowest_bytes, group.throttles) if group else (None, False)
        return Share(
            id=OWN_CGROUP,
            kind=ShareKind.CGROUP,
            label=f"{word} {THROTTLE_LIMIT if throttles else 'limit'}" if group or some_odd else word,
            within=RAM,
            used_bytes=shown.used_bytes if shown else unread,
            limit_bytes=unread if limit is None else limit,
            source=self._version.source,
            quality=Quality.ESTIMATED if with_cache else self._version.quality,
            note="; ".join(self._notes(group, shown, some_odd)),
            limit_throttles=throttles,
        )

    def _notes(self, group: CgroupLimit | None, shown: CgroupLimit | None, some_odd: bool) -> Iterator[str]:
        if self._unread:
            yield describe_unread(self._unread)
        if some_odd:
            yield "a limit cannot be read"
        if group is None and not some_odd and not self._unread:
            yield NO_LIMIT_VISIBLE if self._has_hidden_groups else "no limit is set"
        if group is not None and group.throttles:
            yield describe_throttle(group)
        if shown is not None and shown.includes_cache:
            yield NO_CACHE
        yield CHARGED_NOTE if shown is not None and shown.charges_gpu else CGROUP_NOTE

    def close(self) -> None:
        self._own.close()
        self._close_files()

    def _growth(self, used: Bytes) -> float:
        """Return the growth in bytes per second. After a long pause it counts as if it had just begun."""
        now, before = self._clock(), self._used
        if isinstance(used, Absent):
            self._used = None
            return 0.0
        self._used = now, used
        if before is None:
            return 0.0
        return (used - before[1]) / min(max(now - before[0], MIN_SECONDS), NEAR_SECONDS)

    def _read(self) -> list[CgroupLimit]:
        """Read the groups with memory accounting, outermost first. The own cgroup is checked: it can change."""
        cgroup = self._own.read()
        if cgroup == self._own_cgroup and self._clock() - self._looked_at < RESCAN_SECONDS:
            with suppress(OSError):  # a group was removed, or lost its accounting
                return [group.read() for group in self._groups]
        self._rescan(cgroup)
        return [group.read() for group in self._groups]

    def _rescan(self, cgroup: bytes) -> None:
        """Open the own cgroup and its ancestors that account memory, outermost first."""
        self._close_files()
        home = find_own_cgroup(cgroup, self._read_proc_file("self/mountinfo"), self._roots)
        self._size, self._version = parse_size(self._read_proc_file("meminfo")), home.version
        for folder in home.folders:
            files = open_files(home.version, folder)
            if isinstance(files, OSError):
                self._unread.append(UnreadGroup(_name_of(folder, home.mount), files))
            elif files is not None:
                self._groups.append(files)
        if not self._groups and not self._unread:
            raise SourceUnavailable(f"{home.mount / home.path}: no {home.version.usage} there or in an ancestor")
        # The root of version 2 has no such files: a mount whose folder has them begins below it. Version 1 reports
        # limits that are not visible, as hierarchical_memory_limit.
        outermost = self._groups[0].folder if self._groups else None
        self._has_hidden_groups = home.version is V2 and outermost == home.mount
        self._own_cgroup, self._looked_at = cgroup, self._clock()

    def _read_proc_file(self, name: str) -> bytes:
        try:
            return (self._roots.procfs / name).read_bytes()
        except OSError as error:
            if is_shortage(error):
                raise
            raise SourceUnavailable(f"{error.filename}: {error.strerror}") from error

    def _close_files(self) -> None:
        groups, self._groups, self._unread, self._own_cgroup = self._groups, [], [], b""
        for group in groups:
            group.close()


# Limits and usage of a cgroup, from its open files.

_STAT_KEYS = sorted({*V1.reclaimable, *V2.reclaimable, "hierarchical_memory_limit", "oom_kill"})
_STAT = re.compile(rb"^(%s) (\d{1,20})\n" % "|".join(_STAT_KEYS).encode(), re.MULTILINE)

# Kernel counters are kept per CPU and are added up every 2 s: the cache may exceed the usage by that much.
MIN_EXCESS_BYTES, MIN_EXCESS_RATIO = 64 << 20, 0.02


Limit = int | Absent | None


class CgroupLimit(Struct, frozen=True):
    """One cgroup: limits (None: no limit), usage that counts against them, and OOM kills (None: not counted).

    `limit_bytes`: above it, the kernel kills. `high_bytes`: above it, it slows the processes and kills none.
    A figure that cannot be true is absent by itself. `includes_cache`: the usage is an upper bound.
    """

    folder: Path
    limit_bytes: Limit
    used_bytes: Bytes
    oom_kills: int | None = None
    charges_gpu: bool = False
    includes_cache: bool = False
    high_bytes: Limit = None

    @property
    def is_odd(self) -> bool:
        """Check for a limit that is not a number."""
        return isinstance(self.limit_bytes, Absent) or isinstance(self.high_bytes, Absent)

    @property
    def throttles(self) -> bool:
        """Check for a limit at which the processes are slowed, below the one at which they are killed."""
        high, limit = self.high_bytes, self.limit_bytes
        return isinstance(high, int) and (not isinstance(limit, int) or high < limit)

    @property
    def lowest_bytes(self) -> Limit:
        """Return the limit that is reached first."""
        return self.high_bytes if self.throttles else self.limit_bytes

    @property
    def rejected(self) -> int:
        """Return the number of figures that cannot be true."""
        figures = (self.limit_bytes, self.high_bytes, self.used_bytes)
        return sum([isinstance(one, Absent) for one in figures]) + self.includes_cache


class Used(NamedTuple):
    """Usage without the cache, or with it where the cache is not known."""

    bytes: int
    includes_cache: bool = False


def parse_stat(data: bytes) -> dict[str, int]:
    """Parse memory.stat or the events file: the lines needed for either version, by key."""
    return {key.decode(): int(value) for key, value in _STAT.findall(data)}


def compute_used(version: CgroupVersion, usage: int, stat: Mapping[str, int]) -> Used:
    """Subtract cache from usage, down to 0: the files are not read at the same instant.

    A part of the cache that exceeds the usage is not subtracted: a container that is full would be empty.
    """
    most = usage + max(MIN_EXCESS_BYTES, MIN_EXCESS_RATIO * usage)
    parts = [stat.get(key, 0) for key in version.reclaimable]
    plausible = [part for part in parts if part <= most]
    cache = sum(plausible) if sum(plausible) <= most else 0
    is_known = stat.keys() >= set(version.reclaimable[:2]) and cache == sum(parts)
    return Used(max(0, usage - cache), not is_known)


def limiting_cgroup(groups: Iterable[CgroupLimit], size_bytes: int) -> CgroupLimit | None:
    """Return the group with the smallest limit below `size_bytes`; of equals the outermost, which fills first."""
    limits = [(group, group.lowest_bytes) for group in groups]
    limited = [(limit, at, group) for at, (group, limit) in enumerate(limits) if isinstance(limit, int)]
    return min([one for one in limited if one[0] < size_bytes], default=(0, 0, None))[2]


def killing_cgroup(groups: Iterable[CgroupLimit], size_bytes: int) -> CgroupLimit | None:
    """Return the group at whose limit the kernel kills first."""
    return limiting_cgroup([replace(group, high_bytes=None) for group in groups], size_bytes)


class GroupFiles:
    """The open files of one cgroup. Raises OSError if it does not account memory.

    In version 2, the root has no such files, nor has a group without the memory controller. `oom_kill` exists since
    Linux 4.13.
    """

    def __init__(self, version: CgroupVersion, folder: Path) -> None:
        self._version: CgroupVersion = version
        self.folder: Path = folder
        self._events: KeptFile | None = None
        self._high: KeptFile | None = None
        self._open: list[KeptFile] = []
        try:
            for name in (version.usage, version.limit, "memory.stat"):
                self._open.append(KeptFile(folder / name))
            with suppress(FileNotFoundError, PermissionError):  # OOM kills are unknown then; the limit is not
                self._events = KeptFile(folder / version.events, 512)
            with suppress(FileNotFoundError):
                self._high = KeptFile(folder / version.throttle) if version.throttle else None
            self.read()
        except BaseException:
            self.close()
            raise

    def read(self) -> CgroupLimit:
        usage, limit, statistics = [file.read() for file in self._open]
        stat = parse_stat(statistics)
        kills = parse_stat(self._events.read()).get("oom_kill") if self._events else None
        smallest, charges = _smallest_limit(limit, stat), charges_gpu(statistics)
        high = _smallest_limit(self._high.read(), {}) if self._high else None
        try:
            used = compute_used(self._version, parse_figure(usage), stat)
        except ParseError:
            return CgroupLimit(self.folder, smallest, Absent.INCONSISTENT, kills, charges, high_bytes=high)
        return CgroupLimit(self.folder, smallest, used.bytes, kills, charges, used.includes_cache, high)

    def close(self) -> None:
        for file in (*self._open, self._events, self._high):
            if file is not None:
                file.close()


def _smallest_limit(limit: bytes, stat: Mapping[str, int]) -> Limit:
    """Return the limit. Version 1 also reports those of ancestors that are not visible from inside."""
    outer = stat.get("hierarchical_memory_limit")
    try:
        limits = [parse_limit(limit), outer]
    except ParseError:
        return Absent.INCONSISTENT
    return min([value for value in limits if value is not None], default=None)
