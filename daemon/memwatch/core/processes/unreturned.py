"""Detection of GPU memory that stays used after its process has ended.

On a GB10, memory of a container came back 3 to 4 minutes after its end; a crashed context may keep it until the
driver is reloaded. A pool's unattributed memory shows it: it rises by that amount as the process leaves the list of
its driver. Growth of other processes does not change it. A driver may still list the ended process: then the amount
is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.model import Absent, Bytes, Pool, PoolKind, Process, find_root, sum_figures
from memwatch.core.snapshot import EndedProcess, NotReturned, Snapshot

# Drivers free memory in the background for some seconds.
PATIENCE_SECONDS = 30.0
# Less than this, or than this part of what the ended processes held, is overhead of the driver.
MIN_BYTES, MIN_RATIO = 512 << 20, 0.1
# A process that is listed without GPU memory for this long has freed it and lives on.
ALIVE_SECONDS = 120.0
# After a longer time without complete figures, memory may have moved for other reasons.
MAX_GAP_SECONDS = 60.0

Key = tuple[int, float | Absent]
# Processes with the bytes of one pool that they hold.
Holders = Mapping[Key, tuple[Process, int]]


class Leaver(Struct, frozen=True):
    """A process that no longer holds memory of a pool, since `at` (boot time)."""

    process: EndedProcess
    start_time: float | Absent
    at: float

    @property
    def key(self) -> Key:
        return self.process.pid, self.start_time


class PoolWatch(Struct, frozen=True):
    """State of one pool. `base`: its unattributed memory before the first of `leavers` ended."""

    seen_at: float
    rest: int
    holders: Holders = field(default_factory=dict)
    leavers: tuple[Leaver, ...] = ()
    base: int = 0
    reported: NotReturned | None = None


class PoolReading(Struct, frozen=True):
    """Facts of one pool at one tick: unattributed bytes, holders, and memory of PIDs that only the driver lists."""

    rest: int
    holders: Holders
    ghosts: Mapping[int, int]


class Held(Struct, frozen=True):
    """Memory of visible processes by pool, and of PIDs that only a driver lists.

    `unknown` are the pools with a process whose memory is not known.
    """

    visible: Mapping[str, Holders]
    ghosts: Mapping[str, Mapping[int, int]]
    unknown: frozenset[str]


class ReturnChanges(Struct, frozen=True):
    """Memory that is not returned now, and what changed: newly reported, and returned since the last call."""

    current: tuple[NotReturned, ...] = ()
    began: tuple[NotReturned, ...] = ()
    returned: tuple[NotReturned, ...] = ()


NOTHING = ReturnChanges()


class ReturnTracker:
    """Watches the pools of successive snapshots. Call `add` from one thread."""

    def __init__(self) -> None:
        self._watches: dict[str, PoolWatch] = {}
        self._last: tuple[tuple[Process, ...], Held] = (), Held({}, {}, frozenset())
        self._holders: tuple[tuple[Process, ...], Sequence[Process]] = (), ()

    def add(self, boottime: float, snapshot: Snapshot) -> ReturnChanges:
        """Add a snapshot and return the memory that did not come back."""
        if self._holders[0] is not snapshot.processes:
            self._holders = snapshot.processes, [one for one in snapshot.processes if one.device_bytes]
        holders = self._holders[1]
        if not holders and not self._watches:
            return NOTHING
        self._watches = {
            name: watch
            for name, watch in self._watches.items()
            if name in snapshot.labels and boottime - watch.seen_at <= MAX_GAP_SECONDS
        }
        before = {name: watch.reported for name, watch in self._watches.items() if watch.reported}
        for name, reading in self._read_pools(snapshot, holders).items():
            watch = self._watches.get(name)
            if watch is None or (not watch.leavers and watch.holders.keys() <= reading.holders.keys()):
                self._watches[name] = PoolWatch(boottime, reading.rest, reading.holders)
            else:
                listed = {(process.pid, process.start_time) for process in snapshot.processes if process.visible}
                shift, label = snapshot.unix - boottime, snapshot.labels[name]
                self._watches[name] = step(watch, reading, listed, boottime, shift, (name, label))
        return self._compare(before)

    def _read_pools(self, snapshot: Snapshot, holders: Sequence[Process]) -> Mapping[str, PoolReading]:
        """Sum the processes only if they changed."""
        if isinstance(snapshot.process_scan, Absent):
            return {}
        pool_of = find_pools(snapshot)
        if self._last[0] is not snapshot.processes:
            self._last = snapshot.processes, sum_holders(holders, pool_of)
        return read_pools(snapshot, holders, self._last[1], pool_of)

    def _compare(self, before: Mapping[str, NotReturned]) -> ReturnChanges:
        now = {name: watch.reported for name, watch in self._watches.items() if watch.reported}
        if not now and not before:
            return NOTHING
        return ReturnChanges(
            tuple(now.values()),
            tuple(one for name, one in now.items() if name not in before),
            tuple(one for name, one in before.items() if name not in now),
        )


def read_pools(
    snapshot: Snapshot, holders: Sequence[Process], held: Held, pool_of: Mapping[str, str]
) -> Mapping[str, PoolReading]:
    """Return the pools whose unattributed memory is known, and whose devices list all their processes."""
    left_out = held.unknown | find_unlisted(snapshot, pool_of)
    rests = {pool.id: find_rest(pool, snapshot, holders) for pool in snapshot.pools if pool.id not in left_out}
    return {
        name: PoolReading(rest, held.visible.get(name, {}), held.ghosts.get(name, {}))
        for name, rest in rests.items()
        if isinstance(rest, int)
    }


def sum_holders(holders: Iterable[Process], pool_of: Mapping[str, str]) -> Held:
    visible: dict[str, dict[Key, tuple[Process, int]]] = {}
    ghosts: dict[str, dict[int, int]] = {}
    unknown = set()
    for process in holders:
        key = process.pid, process.start_time
        for place, figure in process.device_bytes.items():
            pool = pool_of.get(place, "")
            if isinstance(figure, Absent):
                unknown.add(pool)
            elif process.visible:
                known = visible.setdefault(pool, {})
                known[key] = process, figure + (known[key][1] if key in known else 0)
            else:
                sums = ghosts.setdefault(pool, {})
                sums[process.pid] = sums.get(process.pid, 0) + figure
    return Held(visible, ghosts, frozenset(unknown))


def find_rest(pool: Pool, snapshot: Snapshot, holders: Sequence[Process]) -> Bytes:
    """Return the bytes of a pool without a known process.

    A driver's total (AMD's GTT, NvMap) explains System RAM as the driver's memory: its part that no process holds
    belongs to the rest.
    """
    if pool.kind is not PoolKind.SYSTEM_RAM:
        return pool.unattributed_bytes
    rests = [pool.unattributed_bytes]
    for share in snapshot.shares:
        if share.within == pool.id and share.device:
            held = sum_figures([one.device_bytes[share.id] for one in holders if share.id in one.device_bytes])
            used = share.used_bytes
            rests.append(max(0, used - held) if isinstance(used, int) and isinstance(held, int) else Absent.STALE)
    return sum_figures(rests)


def find_pools(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the pool in which each pool and share lies."""
    found = {pool.id: pool.id for pool in snapshot.pools}
    within = {share.id: share.within for share in snapshot.shares}
    return found | {share: find_root(share, within) for share in within}


def find_unlisted(snapshot: Snapshot, pool_of: Mapping[str, str]) -> set[str]:
    """Return the pools with a device whose list of processes is not known, or lacks processes.

    A list that is partial only because it has PIDs that are not in /proc lacks none.
    """
    scan = snapshot.process_scan
    hides = not isinstance(scan, Absent) and scan.process_list == "partial"
    known = {place for process in snapshot.processes if not process.visible for place in process.device_bytes}
    known |= {share.device for share in snapshot.shares if share.id in known and share.device}
    unlisted = set()
    for device in snapshot.devices:
        has_all = device.process_list == "complete" or (
            device.process_list == "partial" and device.id in known and not hides
        )
        if not has_all:
            unlisted |= {pool_of[place] for place in device.allocates_from}
    return unlisted


def _describe(process: Process, held: int) -> EndedProcess:
    return EndedProcess(process.pid, process.title, held, process.unit, process.container)


def step(
    watch: PoolWatch,
    now: PoolReading,
    listed: Collection[Key],
    boottime: float,
    shift: float,
    pool: tuple[str, str],
) -> PoolWatch:
    """Return the next state. `listed`: visible processes; `shift`: boot time to Unix time; `pool`: id and label."""
    gone = [
        Leaver(_describe(*held), start, boottime)
        for (pid, start), held in watch.holders.items()
        if (pid, start) not in now.holders
    ]
    base = watch.base if watch.leavers else watch.rest
    leavers = tuple(
        one
        for one in (*watch.leavers, *gone)
        if one.key not in now.holders and not (one.key in listed and boottime - one.at > ALIVE_SECONDS)
    )
    due = [one for one in leavers if one.key not in listed and boottime - one.at >= PATIENCE_SECONDS]
    fresh = PoolWatch(boottime, now.rest, now.holders, leavers, base if leavers else 0, watch.reported)
    if not due:
        return replace(fresh, reported=None)
    left = count_unreturned(due, leavers, now, base)
    enough = max(MIN_BYTES, MIN_RATIO * sum(one.process.held_bytes for one in due))
    # Half of it once reported: an amount at the limit must not flicker.
    if left >= (enough / 2 if watch.reported else enough):
        return replace(fresh, reported=build_report(due, left, now, shift, pool))
    others = tuple(one for one in leavers if one not in due)
    return replace(fresh, leavers=others, base=base if others else 0, reported=None)


def count_unreturned(due: Sequence[Leaver], leavers: Sequence[Leaver], now: PoolReading, base: int) -> int:
    """Return the bytes that are still used. Those of processes that ended just now may be on their way back."""
    listed = {one.process.pid: now.ghosts.get(one.process.pid, 0) for one in due}
    risen = max(0, now.rest - base - sum(one.process.held_bytes for one in leavers if one not in due))
    whole = sum(one.process.held_bytes for one in due)
    return min(whole, sum(listed.values()) + risen)


def build_report(
    due: Sequence[Leaver], left: int, now: PoolReading, shift: float, pool: tuple[str, str]
) -> NotReturned:
    from memwatch.core.listing import some_of  # with the budgets of a daemon, which a reading does without

    names = some_of([f"{one.process.name} (PID {one.process.pid})" for one in due], 3)
    still = "; the driver still lists it" if any(one.process.pid in now.ghosts for one in due) else ""
    return NotReturned(
        pool=pool[0],
        held_bytes=left,
        since_unix=due[0].at + shift,
        processes=tuple(one.process for one in due),
        text=f"{units.size(left)} of {pool[1]} did not come back after {names} ended{still}",
    )
