"""Leases in force: granted one at a time, followed on each tick, and dropped when the daemon ends."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.accounting.leased import (
    choose_places,
    find_room,
    held_by_pool,
    list_targets,
    with_leases_used,
)
from memwatch.core.budget import ROOT, Account, Budget
from memwatch.core.clock import CLOCK_SET_SECONDS, Moment
from memwatch.core.events import LEASE
from memwatch.core.leases import (
    ARRIVED_RATIO,
    MAX_NAME_LENGTH,
    Lease,
    still_held,
)
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.files import ParseError, read_once
from memwatch.core.linux.process_files import find_living_thread, parse_real_uid, parse_stat
from memwatch.core.model import PERHAPS_IN_RSS, Absent, Process, find_inside, find_system_ram
from memwatch.core.printable import decode, printable
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.feature import Feature, Tick
from memwatch_monitor.loop import Monitor

# A child of a child, and so on. The limit ends a search whose processes change meanwhile.
MAX_GENERATIONS = 64
_STATUS_SIZES = re.compile(rb"^(RssAnon|RssShmem):[ \t]+(\d{1,15}) kB\n", re.MULTILINE)

Key = tuple[int, int]
ROOT_UID = 0


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
        inside = find_inside(self._pools, snapshot.shares)
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


def _device_bytes(process: Process, inside: Collection[str], unsure: Collection[str]) -> tuple[int, int]:
    """Return the device memory beyond the resident set, and what may be part of it."""
    sums = [0, 0]
    for place, held in process.device_bytes.items():
        if place in inside and isinstance(held, int):
            sums[place in unsure] += held
    return sums[0], sums[1]


# Growth is measured once a second at most, also while the loop ticks faster.
FOLLOW_SECONDS = 0.9


class LeaseRefusedError(ValueError):
    """A lease was refused. The message is a sentence. `conflict`: the request is valid, but not now."""

    def __init__(self, why: str, conflict: bool = False) -> None:
        super().__init__(why)
        self.conflict = conflict


class LeaseRequest(Struct, frozen=True):
    """Request for `bytes` of a pool or device. `certain`: only memory that is free without reclaim counts.

    `made_by`: the client, with the user id `by_uid` if the kernel names it.
    """

    bytes: int
    target: str
    seconds: float
    pid: int
    start_ticks: int | None = None
    name: str = ""
    certain: bool = False
    made_by: str = ""
    by_uid: int | None = None
    is_operator: bool = True


class Entry(NamedTuple):
    """A lease in force. `places`: its bytes by pool or share at the start. `uid`: the user of the process.

    `arrived`: bytes that had arrived by the last measurement. Pools are read at other times than processes, so a
    byte is no longer reserved only after the next one, when the figures of its pool include it.
    """

    lease: Lease
    places: Mapping[str, int]
    start_ticks: int
    uid: int | None
    account: Account
    until_boottime: float
    arrival: ArrivalTracker
    arrived: int = 0


class LeaseBook(Feature):
    """Leases in force. Thread-safe.

    `on_change` gets all of them after a change; `record` time, text, target and account.
    """

    name = "leases"

    @classmethod
    def of(cls, monitor: Monitor) -> LeaseBook:
        """Create the leases of a loop. They are not logged: every user may take some, the log is for operators."""

        def record(unix: float, text: str, target: str, account: Account) -> None:
            monitor.events.add(unix, LEASE, text, target, account)

        reader = ProcessReader(monitor.reports.procfs)
        budget = monitor.budgets["leases"]
        return cls(reader, monitor.moment, monitor.publisher.use_leases, record, budget, monitor.accounts)

    def __init__(
        self,
        reader: ProcessReader,
        moment: Callable[[], Moment],
        on_change: Callable[[tuple[Lease, ...]], object],
        record: Callable[[float, str, str, Account], object],
        budget: Budget,
        accounts: Accounts,
    ) -> None:
        self._reader = reader
        self._moment = moment
        self._on_change = on_change
        self._record = record
        self._budget, self._accounts = budget, accounts
        self._entries: dict[str, Entry] = {}
        self._published: tuple[Lease, ...] = ()
        self._followed_at = 0.0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def current(self) -> tuple[Lease, ...]:
        """Return the leases in force now, the oldest first."""
        with self._lock:
            self._drop_ended(self._moment(), {})
            return self._leases()

    def owner_uid(self, lease_id: str) -> int | None:
        """Return the user of a lease's process, None without such a lease."""
        entry = self._entries.get(lease_id)
        return entry.uid if entry else None

    def grant(self, request: LeaseRequest, snapshot: Snapshot) -> Lease:
        """Grant a lease if its bytes fit beside all others. Raises LeaseRefusedError."""
        with self._lock:
            now = self._moment()
            self._drop_ended(now, {})
            entry = self._check(request, snapshot, now)
            self._entries[entry.lease.id] = entry
            self._publish()
        self._record(now.wall, describe_grant(entry.lease, request.seconds), request.target, entry.account)
        return entry.lease

    def end(self, lease_id: str, by: str) -> bool:
        """End a lease. Return False without such a lease."""
        with self._lock:
            entry = self._entries.get(lease_id)
            if entry is not None:
                self._remove(entry, f"ended by {by}")
            return entry is not None

    def on_tick(self, tick: Tick) -> None:
        if self._entries:
            self.follow(tick.now, tick.snapshot)

    def follow(self, now: Moment, snapshot: Snapshot) -> None:
        """Update what has arrived, and end what is over."""
        with self._lock:
            seen: Seen = {}
            self._drop_ended(now, seen)
            if 0 <= now.monotonic - self._followed_at < FOLLOW_SECONDS:
                return
            self._followed_at = now.monotonic
            for entry in list(self._entries.values()):
                self._follow_one(entry, now, snapshot, seen)
            self._publish()

    def _follow_one(self, entry: Entry, now: Moment, snapshot: Snapshot, seen: Seen) -> None:
        held = still_held(entry.places, entry.arrived)
        lease = replace(entry.lease, held=held, until_unix=_by_wall_clock(entry, now))
        if lease.arrived_bytes >= ARRIVED_RATIO * lease.bytes:
            self._remove(entry, f"{units.size(lease.arrived_bytes)} arrived")
        else:
            arrived = entry.arrival.update(snapshot, seen)
            self._entries[lease.id] = entry._replace(lease=lease, arrived=arrived)

    def _check(self, request: LeaseRequest, snapshot: Snapshot, now: Moment) -> Entry:
        """Return the new entry. Raises LeaseRefusedError."""
        process = self._reader.read(request.pid)
        if process is None or request.start_ticks not in (None, process.start_ticks):
            started = "" if request.start_ticks is None else f" that started at tick {request.start_ticks}"
            raise LeaseRefusedError(
                f"no process {request.pid}{started} runs here; send the pid of a running process as the host "
                "numbers it"
            )
        uid = self._reader.owner_uid(request.pid)
        places = self._find_places(request, snapshot)
        pools = frozenset(held_by_pool([_blank(request, places)], snapshot.shares))
        self._refuse_second(request, process.start_ticks, pools, snapshot)
        key = (process.pid, process.start_ticks)
        lease = replace(
            _blank(request, places),
            id=f"lease_{secrets.token_hex(6)}",
            name=printable(request.name or process.name)[:MAX_NAME_LENGTH],
            created_unix=now.wall,
            until_unix=now.wall + request.seconds,
        )
        arrival = ArrivalTracker(self._reader, key, snapshot, pools)
        account = self._take_place(request, lease.id, uid)
        return Entry(lease, places, process.start_ticks, uid, account, now.boottime + request.seconds, arrival)

    def _find_places(self, request: LeaseRequest, snapshot: Snapshot) -> dict[str, int]:
        """Return the bytes by place. Raises LeaseRefusedError if they do not fit."""
        total = find_room(snapshot, request.target)
        if total is None:
            targets = ", ".join(list_targets(snapshot)) or "none: this machine has no data yet"
            raise LeaseRefusedError(f"target is {request.target[:80]!r}; use one of {targets}")
        if isinstance(total.size_bytes, int) and request.bytes > total.size_bytes:
            raise LeaseRefusedError(
                f"{units.size(request.bytes)} exceed the total of {request.target}, "
                f"{units.size(total.size_bytes)}; lease less"
            )
        beside = with_leases_used(snapshot, self._leases())
        room = find_room(beside, request.target) or total
        left = room.headroom_bytes if request.certain else room.headroom_after_reclaim_bytes
        if isinstance(left, Absent):
            why = left.value.replace("_", " ")
            raise LeaseRefusedError(
                f"the available memory of {request.target} is not known ({why}); retry later", True
            )
        if request.bytes > left:
            raise LeaseRefusedError(self._describe_conflict(request, left, now_unix=self._moment().wall), True)
        return choose_places(beside, request.target, request.bytes)

    def _describe_conflict(self, request: LeaseRequest, left: int, now_unix: float) -> str:
        how = " without reclaim" if request.certain else ""
        others = [f"{describe(one)}, {units.duration(one.until_unix - now_unix)} left" for one in self._leases()]
        beside = f" beside leases: {'; '.join(others)}" if others else ""
        remedy = "wait, or end a lease" if others else "wait until other programs free memory"
        return (
            f"{units.size(request.bytes)} of {request.target} do not fit: {units.size(left)} are available"
            f"{how}{beside}; {remedy}"
        )

    def _take_place(self, request: LeaseRequest, lease_id: str, uid: int | None) -> Account:
        """Count the lease. One of an account with more of them ends for it. Raises LeaseRefusedError."""
        account = ROOT if request.by_uid == ROOT_UID else self._accounts.of_now(uid)
        account = account.as_operator() if request.is_operator else account
        verdict = self._budget.admit(lease_id, account, request.bytes)
        if not verdict.is_admitted:
            raise LeaseRefusedError(f"{self._budget.describe(account)}; end one first", True)
        if entry := self._entries.get(str(verdict.gone)):
            try:
                self._remove(entry, f"its account had the most leases, and {account.name} needed a place")
            except BaseException:
                self._budget.release(lease_id)
                raise
        return account

    def _refuse_second(
        self, request: LeaseRequest, start_ticks: int, pools: frozenset[str], snapshot: Snapshot
    ) -> None:
        """One lease of a process in each pool: its growth shows in which pool bytes arrive, not for which lease."""
        for entry in self._entries.values():
            same = (entry.lease.pid, entry.start_ticks) == (request.pid, start_ticks)
            if same and not pools.isdisjoint(held_by_pool([entry.lease], snapshot.shares)):
                raise LeaseRefusedError(
                    f"process {request.pid} already has {entry.lease.id} in the same pool; end that first, or "
                    "lease the sum at once"
                )

    def _drop_ended(self, now: Moment, seen: Seen) -> None:
        gone = [(entry, why) for entry in self._entries.values() if (why := self._why_ended(entry, now, seen))]
        for entry, why in gone:
            self._remove(entry, why)

    def _why_ended(self, entry: Entry, now: Moment, seen: Seen) -> str:
        if now.boottime >= entry.until_boottime:
            return "its time is over"
        pid = entry.lease.pid
        if pid not in seen:
            seen[pid] = self._reader.read(pid)
        process = seen[pid]
        return "" if process is not None and process.start_ticks == entry.start_ticks else "its process ended"

    def _remove(self, entry: Entry, why: str) -> None:
        del self._entries[entry.lease.id]
        self._budget.release(entry.lease.id)
        self._publish()
        text = f"lease ended: {describe(entry.lease)}: {why}"
        self._record(self._moment().wall, text, entry.lease.target, entry.account)

    def _publish(self) -> None:
        leases = self._leases()
        if leases != self._published:
            self._published = leases
            self._on_change(leases)

    def _leases(self) -> tuple[Lease, ...]:
        return tuple(entry.lease for entry in self._entries.values())


def _blank(request: LeaseRequest, places: Mapping[str, int]) -> Lease:
    """Return the lease without its id, name and times."""
    return Lease("", "", request.target, request.pid, request.bytes, places, 0.0, 0.0, printable(request.made_by))


def _by_wall_clock(entry: Entry, now: Moment) -> float:
    """Return the end of a lease, moved along if the wall clock was set."""
    until = entry.until_boottime + now.wall - now.boottime
    return until if abs(until - entry.lease.until_unix) >= CLOCK_SET_SECONDS else entry.lease.until_unix


def describe(lease: Lease) -> str:
    return f"{units.size(lease.bytes)} of {lease.target} for {lease.name} (PID {lease.pid})"


def describe_grant(lease: Lease, seconds: float) -> str:
    by = f", by {lease.made_by}" if lease.made_by else ""
    return f"leased for {units.duration(seconds)}: {describe(lease)}{by}"
