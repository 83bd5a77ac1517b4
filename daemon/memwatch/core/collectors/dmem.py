"""Limits and use of GPU memory by cgroup, as the kernel's dmem controller has them (Linux 6.14 and newer)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroup_mounts import find_unified_tree
from memwatch.core.linux.dmem import (
    UNLIMITED_BYTES,
    DmemGroup,
    DmemReading,
    RegionUse,
    is_within,
    parse_regions,
    parse_sizes,
)
from memwatch.core.linux.files import KeptFile, Roots, SourceUnavailable
from memwatch.core.model import Absent, Bytes, known_or

# Limited groups are read every second, all groups every 10 s: at most `STEP_GROUPS` of them each time, so that a
# machine with 500 containers spends 3 ms at once.
PERIOD_SECONDS, WALK_SECONDS = 1.0, 10.0
STEP_GROUPS = 128
MAX_GROUPS, MAX_LIMITED, MAX_USERS = 4096, 64, 256
_IN_USE = re.compile(rb" [1-9]")
MAX_FILE_BYTES = 16384


class KeptGroup:
    """A limited group whose use is read again through an open file. Opening it raises OSError if it was removed."""

    def __init__(self, folder: str, group: DmemGroup) -> None:
        self.group = group
        self._file = KeptFile(Path(folder, "dmem.current"), 512)

    def read(self) -> DmemGroup | None:
        """Read the use again; None if the group was removed."""
        try:
            used = parse_sizes(self._file.read())
        except OSError:
            return None
        gone = Absent.NOT_AVAILABLE
        regions = [replace(one, used_bytes=used.get(one.region, gone)) for one in self.group.regions]
        return replace(self.group, regions=tuple(regions))

    def close(self) -> None:
        self._file.close()


class Collector(BaseCollector):
    """Walks the cgroup tree in steps. Groups without the controller are skipped with everything below them."""

    name = "dmem"
    period_seconds = PERIOD_SECONDS
    may_block = True

    def __init__(self, roots: Roots, clock: Callable[[], float] = time.monotonic) -> None:
        self._tree = find_unified_tree(roots)
        self._roots, self._clock = roots, clock
        self._root = str(self._tree.folder)
        if not parse_regions(_read(f"{self._root}/dmem.capacity") or _read(f"{self._root}/dmem.current")):
            raise SourceUnavailable(
                f"{self._root}: no dmem.capacity or dmem.current with a region. It needs Linux 6.14 and amdgpu, "
                "xe or NVIDIA's driver R615"
            )
        self._walk: Iterator[None] | None = None
        self._paths: list[str] = []
        self._walked_at: float | None = None
        self._found: list[DmemGroup] = []
        self._reading = DmemReading()
        self._kept: list[KeptGroup] = []
        self._left_out: dict[str, int] = {}

    def collect(self) -> Findings:
        now, first = self._clock(), self._walked_at is None
        if self._walked_at is None or (self._walk is None and now - self._walked_at >= WALK_SECONDS):
            self._walked_at, self._found = now, []
            self._walk = self._visit_groups()
        self._step(MAX_GROUPS + 1 if first else STEP_GROUPS)
        if self._kept:
            self._reread()
        return Findings(dmem=self._reading, left_out=self._left_out)

    def close(self) -> None:
        kept, self._kept = self._kept, []
        for one in kept:
            one.close()

    def _step(self, groups: int) -> None:
        """Visit that many groups. After the last one, use what was found."""
        if self._walk is not None and sum(1 for _ in islice(self._walk, groups)) < groups:
            self._walk = None
            self._publish(self._found)

    def _visit_groups(self) -> Iterator[None]:
        """Visit the groups that have the controller, outer groups first; yield after each."""
        self._paths = paths = [""]
        for path in islice(paths, MAX_GROUPS):  # grows while it is read
            folder = self._root + path
            limits = _read(f"{folder}/dmem.max")
            if limits is not None:
                self._note(path or "/", folder, limits)
            if limits is not None or not path:
                paths += [f"{path}/{name}" for name in _list_children(folder)]
            yield

    def _note(self, cgroup: str, folder: str, limits: bytes) -> None:
        """Keep a group that has a limit, or memory in use."""
        current = _read(f"{folder}/dmem.current") or b""
        limited = limits.count(b" max\n") != limits.count(b"\n")
        if not limited and not _IN_USE.search(current):
            return
        largest = parse_regions(limits)
        # A limit whose use cannot be read is still a limit.
        used: dict[str, Bytes] = {**parse_sizes(current)}
        for region, limit in largest.items():
            if limit is not None:
                used.setdefault(region, Absent.NOT_AVAILABLE)
        peaks, kept = {}, {}
        if limited:
            peaks = parse_sizes(_read(f"{folder}/dmem.peak"))
            kept = _read_protection(folder, used)
        regions = [
            RegionUse(
                region, size, largest.get(region), peaks.get(region, Absent.NOT_SUPPORTED), kept.get(region, 0)
            )
            for region, size in used.items()
            if size or largest.get(region) is not None
        ]
        self._found.append(DmemGroup(cgroup, tuple(regions)))

    def _publish(self, found: list[DmemGroup]) -> None:
        """Keep the groups with the largest limits, and those without a limit that use the most."""
        own = self._tree.own_path(_read(f"{self._roots.procfs}/self/cgroup") or b"")
        limited = [one for one in found if one.rank_bytes is not None]
        limited.sort(key=lambda one: (not is_within(own, one.cgroup), -(one.rank_bytes or 0), one.cgroup))
        users = [one for one in found if one.rank_bytes is None]
        users.sort(key=lambda one: (-sum(known_or(region.used_bytes, 0) for region in one.regions), one.cgroup))
        self.close()
        for one in limited[:MAX_LIMITED]:
            with suppress(OSError):  # removed since it was visited
                self._kept.append(KeptGroup(self._root + one.cgroup, one))
        capacity = parse_sizes(_read(f"{self._root}/dmem.capacity"))
        groups = (*limited[:MAX_LIMITED], *users[:MAX_USERS])
        unread = max(0, len(self._paths) - MAX_GROUPS)
        self._left_out = {"dmem_cgroups": unread, "dmem_users": len(users[MAX_USERS:])}
        self._reading = DmemReading(groups, own, capacity, len(limited[MAX_LIMITED:]))

    def _reread(self) -> None:
        """Read the use of the limited groups again. A removed group has none from now on."""
        now = [group for kept in self._kept if (group := kept.read()) is not None]
        users = [one for one in self._reading.groups if one.rank_bytes is None]
        self._reading = replace(self._reading, groups=(*now, *users))


def _read_protection(folder: str, regions: Iterable[str]) -> dict[str, int]:
    """Return the larger of dmem.min and dmem.low by region; `max` protects all memory."""
    files = [parse_regions(_read(f"{folder}/{name}")) for name in ("dmem.min", "dmem.low")]
    found = {}
    for region in regions:
        sizes = [file.get(region, 0) for file in files]
        found[region] = max(UNLIMITED_BYTES if size is None else size for size in sizes)
    return found


def _list_children(folder: str) -> list[str]:
    """Return the names of child groups. A folder with two links has none, which spares listing its files."""
    try:
        if os.stat(folder).st_nlink == 2:
            return []
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _read(path: str) -> bytes | None:
    """Return the content of a small file, or None if it cannot be read. Half the time of pathlib."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, MAX_FILE_BYTES)
    except OSError:
        return None
    finally:
        os.close(file)
