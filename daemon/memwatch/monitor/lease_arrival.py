"""Arrival of leased bytes: growth of a process and its descendants in the pools of the lease."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from memwatch.core.accounting.leased import way_out
from memwatch.core.linux.files import ParseError, read_once
from memwatch.core.linux.process_files import find_living_thread, parse_real_uid, parse_stat
from memwatch.core.model import PERHAPS_IN_RSS, Process, Share, find_system_ram
from memwatch.core.printable import decode
from memwatch.core.snapshot import Snapshot

# A child of a child, and so on. The limit ends a search whose processes change meanwhile.
MAX_GENERATIONS = 64
_STATUS_SIZES = re.compile(rb"^(RssAnon|RssShmem):[ \t]+(\d{1,15}) kB\n", re.MULTILINE)

Key = tuple[int, int]


class ProcessFacts(NamedTuple):
    """A living process, by its files. `start_ticks` and `pid` identify it."""

    pid: int
    start_ticks: int
    parent: int
    name: str


Seen = dict[int, "ProcessFacts | None"]


class ProcessReader:
    """Reads single processes of a procfs."""

    def __init__(self, procfs: Path = Path("/proc")) -> None:
        self._procfs = procfs

    def owner_uid(self, pid: int) -> int | None:
        """Return the real user id of a process, None if it does not exist or is hidden."""
        return parse_real_uid(read_once(self._procfs / str(pid) / "status") or b"")

    def read(self, pid: int) -> ProcessFacts | None:
        """Return a process, None if it has ended or is a kernel thread."""
        data = read_once(self._procfs / str(pid) / "stat") or b""
        with suppress(ParseError):
            stat = parse_stat(data) if data else None
            if stat is not None and not (is_zombie(data) and not self._has_living_thread(pid)):
                return ProcessFacts(stat.pid, stat.start_ticks, stat.parent, decode(stat.name))
        return None

    def is_running(self, pid: int, start_ticks: int) -> bool:
        found = self.read(pid)
        return found is not None and found.start_ticks == start_ticks

    def sizes(self, pid: int) -> tuple[int, int]:
        """Return the resident anonymous and shared memory. Resident pages of files stay available, so they do not
        count."""
        status = read_once(self._procfs / str(pid) / "status") or b""
        found = {name: int(kib) << 10 for name, kib in _STATUS_SIZES.findall(status)}
        return found.get(b"RssAnon", 0), found.get(b"RssShmem", 0)

    def _has_living_thread(self, pid: int) -> bool:
        """Return True if only the main thread has ended."""
        with suppress(OSError):
            procfs = os.open(self._procfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return find_living_thread(procfs, f"{pid}/task") is not None
            finally:
                os.close(procfs)
        return False


def is_zombie(stat: bytes) -> bool:
    return stat.rpartition(b")")[2].split(None, 1)[:1] in ([b"Z"], [b"X"])


class TreeSize(NamedTuple):
    """Sizes of the processes of a lease. `shared` is counted once, of the process with the most."""

    private: Mapping[Key, int]
    anonymous: Mapping[Key, int]
    shared: int


class ArrivalTracker:
    """Watches how much of a lease has arrived. It never decreases: freed bytes are not reserved again."""

    def __init__(self, reader: ProcessReader, root: Key, snapshot: Snapshot, pools: Collection[str]) -> None:
        self._reader = reader
        self._root = root
        self._pools = pools
        self._members: set[Key] = {root}
        size = self._measure(snapshot, {})
        self._bases = dict(size.private)
        self._inherited = size.anonymous.get(root, 0)
        self._shared_base = size.shared
        self._arrived = 0

    def update(self, snapshot: Snapshot, seen: Seen) -> int:
        """Return the bytes that have arrived. `seen`: processes that were read just now, shared by all leases."""
        size = self._measure(snapshot, seen)
        self._inherited = min(self._inherited, size.anonymous[self._root])
        grown = sum(count - self._base(key, count, size.anonymous[key]) for key, count in size.private.items())
        self._shared_base = min(self._shared_base, size.shared)
        self._arrived = max(self._arrived, grown + size.shared - self._shared_base)
        return self._arrived

    def _base(self, key: Key, count: int, anonymous: int) -> int:
        """Return the size to count from: the least since the lease began.

        A process forked since then shows its parent's pages as its own; those are not new.
        """
        base = self._bases.get(key, min(self._inherited, anonymous))
        self._bases[key] = min(base, count)
        return self._bases[key]

    def _measure(self, snapshot: Snapshot, seen: Seen) -> TreeSize:
        processes = {process.pid: process for process in snapshot.processes if process.visible}
        self._find_members(processes, seen)
        ram = find_system_ram(snapshot.pools)
        in_ram = ram is not None and ram.id in self._pools
        inside = find_inside(snapshot.shares, self._pools)
        unsure = {share.id for share in snapshot.shares if share.kind in PERHAPS_IN_RSS}
        private, anonymous, shared = {}, {}, 0
        for key in self._members:
            own, of_all = self._reader.sizes(key[0]) if in_ram else (0, 0)
            process = processes.get(key[0])
            beyond, perhaps = _device_bytes(process, inside, unsure) if process else (0, 0)
            anonymous[key], private[key], shared = own, beyond + max(own, perhaps), max(shared, of_all)
        return TreeSize(private, anonymous, shared)

    def _find_members(self, processes: Mapping[int, Process], seen: Seen) -> None:
        """Keep the members that run, and add listed processes that descend from one.

        A member stays one when its parent ends. A small process is not listed, so it is not counted.
        """
        self._members = {key for key in self._members if self._is_running(key, seen)} | {self._root}
        pids = {pid for pid, _ in self._members}
        for pid in processes.keys() - pids:
            line = list(self._ancestry(pid, pids, seen))
            if line and line[-1].parent in pids:
                self._members |= {(one.pid, one.start_ticks) for one in line}
                pids |= {one.pid for one in line}

    def _ancestry(self, pid: int, members: Collection[int], seen: Seen) -> Iterator[ProcessFacts]:
        """Yield a process and its ancestors below the first member or process 1."""
        for _ in range(MAX_GENERATIONS):
            found = self._facts(pid, seen)
            if found is None:
                return
            yield found
            pid = found.parent
            if pid <= 1 or pid in members:
                return

    def _is_running(self, key: Key, seen: Seen) -> bool:
        found = self._facts(key[0], seen)
        return found is not None and found.start_ticks == key[1]

    def _facts(self, pid: int, seen: Seen) -> ProcessFacts | None:
        if pid not in seen:
            seen[pid] = self._reader.read(pid)
        return seen[pid]


def find_inside(shares: Sequence[Share], pools: Collection[str]) -> set[str]:
    """Return these pools and all shares inside them."""
    within = {share.id: share.within for share in shares}
    return {*pools, *(share for share in within if any(place in pools for place in way_out(share, within)))}


def _device_bytes(process: Process, inside: Collection[str], unsure: Collection[str]) -> tuple[int, int]:
    """Return the device memory beyond the resident set, and what may be part of it."""
    sums = [0, 0]
    for place, held in process.device_bytes.items():
        if place in inside and isinstance(held, int):
            sums[place in unsure] += held
    return sums[0], sums[1]
