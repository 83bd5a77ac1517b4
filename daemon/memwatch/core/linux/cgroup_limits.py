"""Limits and usage of a cgroup, from its open files. Not a collector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.linux.cgroup_mounts import V1, V2, CgroupVersion, charges_gpu, parse_figure, parse_limit
from memwatch.core.linux.files import KeptFile, ParseError
from memwatch.core.model import Absent, Bytes

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
