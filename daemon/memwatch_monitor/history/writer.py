"""Write the history to disk: in batches normally, every tick at once under pressure.

Two threads are started once: one writes, one waits for `fdatasync`. A tick at high or critical pressure waits
briefly for its write, never for the disk. A tick that a client has seen thus survives the end of this process,
except one at high that hardly differs from one of the last ten seconds. It survives a power loss once fdatasync is
done. Important events wake the writer when they are added. Writing raises nothing: failures are counted, logged
once, and retried later.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from memwatch.core.clock import Clock
from memwatch.core.events import Event, EventLog
from memwatch.core.model import Absent
from memwatch.core.printable import describe_error
from memwatch.core.snapshot import Level, Snapshot
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.history.notable_ticks import Holder, NotableTick, NotableTicks, Tick, build_tick, pack
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.records import (
    EVENTS,
    FILES,
    HOLDER_ROWS,
    ROWS,
    STARTED,
    STOPPED,
    TICK,
    choose_events,
    count_blocks,
    pack_entry,
    pack_events,
    pack_full_blocks,
    pack_holders,
)
from memwatch_monitor.history.restore import MAX_UNWRITTEN, number_from_clock, pack_number, restore
from memwatch_monitor.history.ring_file import (
    BLOCK,
    MAX_RUNS,
    TIERS,
    RingSet,
    Stamp,
    blocks_for,
    boot_bytes,
    open_ring_set,
    prepare,
)
from memwatch_monitor.history.tiers import History

log: logging.Logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0


class FilesStatus(Struct, frozen=True):
    """Statistics of writing. `lost` counts records that were damaged, or unreadable, when this run started.

    `aside`: names of files with the damaged data. `complaint`: why nothing can be written now, or empty.
    """

    folder: Path
    size_bytes: int
    written_bytes: int
    writes: int
    sync_seconds: float
    errors: int
    dropped: int
    lost: int
    aside: tuple[str, ...]
    complaint: str


class Files:
    """The rings of one folder. `append` is not thread-safe. A separate thread waits for fdatasync."""

    def __init__(self, folder: Path, size_bytes: int, unix: float) -> None:
        self.ring_set: RingSet = open_ring_set(folder, size_bytes, unix)
        self.dropped: int = 0
        self._folder = folder
        self._written = self._writes = self._errors = 0
        self._sync_seconds = 0.0
        self._complaint = ""
        self._retry_at = 0.0
        self._unsynced: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._syncer = threading.Thread(target=self._sync_until_stopped, name="store-sync", daemon=True)

    def forget_contents(self) -> None:
        """Drop the records' index after a restore, except for rings that must be rewritten to become smaller."""
        self.ring_set.contents = {
            name: contents for name, contents in self.ring_set.contents.items() if not self._fits(name)
        }

    def start(self, stamp: Stamp) -> None:
        for complaint in self.ring_set.complaints:
            log.warning("%s", complaint)
        self._prepare(stamp)
        self._syncer.start()

    def append(self, name: str, kind: int, stamp: Stamp, payload: bytes) -> bool:
        """Write a record. Return False if it cannot be written now."""
        ring = self.ring_set.rings.get(name)
        if ring is not None and not ring.ready and time.monotonic() >= self._retry_at:
            self._prepare(stamp)
        if ring is None or not ring.ready:
            self.dropped += 1
            return False
        try:
            self._written += ring.append(kind, stamp, payload)
        except OSError as error:
            ring.ready = False
            self._fail(error)
            return False
        self._writes += 1
        with self._changed:
            self._unsynced.add(name)
        return True

    def sync(self) -> None:
        """Have the records so far synced: once after all of a turn, because each is a wake-up of the thread."""
        with self._changed:
            if self._unsynced:
                self._changed.notify_all()

    def stop(self, seconds: float) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._syncer.is_alive():
            self._syncer.join(seconds)
        if not self._syncer.is_alive():
            for ring in self.ring_set.rings.values():
                ring.close()

    def status(self) -> FilesStatus:
        return FilesStatus(
            self._folder,
            sum(ring.blocks * BLOCK for ring in self.ring_set.rings.values() if ring.ready),
            self._written,
            self._writes,
            self._sync_seconds,
            self._errors,
            self.dropped,
            self.ring_set.lost,
            tuple(self.ring_set.aside),
            self._complaint,
        )

    def _fits(self, name: str) -> bool:
        return self.ring_set.rings[name].fits

    def _prepare(self, stamp: Stamp) -> None:
        try:
            prepare(self.ring_set, stamp)
        except OSError as error:
            self._fail(error)
        else:
            self._resume()

    def _resume(self) -> None:
        if self._complaint:
            log.warning("writing history to %s again", self._folder)
        self._complaint = ""

    def _fail(self, error: OSError) -> None:
        self._errors += 1
        self._retry_at = time.monotonic() + RETRY_SECONDS
        complaint = f"cannot write history to {self._folder}: {describe_error(error)}"
        if complaint != self._complaint:
            log.warning("%s; keeping it in memory, retrying every minute", complaint)
        self._complaint = complaint

    def _sync_until_stopped(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._unsynced) or self._stopping)
                names, self._unsynced = self._unsynced, set()
                stopping = self._stopping
            started = time.monotonic()
            for name in names:
                self._sync(name)
            if names:
                self._sync_seconds = time.monotonic() - started
            if stopping and not self._unsynced:
                return

    def _sync(self, name: str) -> None:
        try:
            self.ring_set.rings[name].sync()
        except OSError as error:
            self._fail(error)
        else:
            # Avoid flapping: report recovery only after RETRY_SECONDS without an error.
            if self._complaint and time.monotonic() >= self._retry_at and self._all_ready():
                self._resume()

    def _all_ready(self) -> bool:
        return all(ring.ready for ring in self.ring_set.rings.values())


# Greatest age of a row that is not on disk while all levels are OK; half of it at medium. A rise of the level is
# written at once. Each write is at least a block of 4 KiB: every 60 s these are 6 MB a day.
FLUSH_SECONDS = 60.0
# The first rows are written soon after the start. They have the number of kills so far: if the kernel kills the
# daemon within a minute, its next run reports that.
FIRST_FLUSH_SECONDS = 10.0
# At high, a tick that differs from the last written one by less than this fraction of a size is written after this
# time, in one record with the rows since. A machine that serves a model is at high all day: each tick on disk took
# 400 MB a day and 8 wake-ups/s.
STILL_RATIO, STILL_SECONDS = 0.0005, 10.0
# While all levels are OK, rows come with their worst tick unless one that says the same is at most this old.
SAME_TICK_SECONDS = 3600.0
# Minimum number of new rows per write, by tier, and of those of holders. At the next start missing coarse rows are
# computed from finer ones, so they wait for at most half the time that those are kept.
BATCH_ROWS = (1, 90, 12)
HOLDER_BATCH_ROWS = (30, 36)
# Few rows of holders leave most of a block empty: they are written with the next rows of the machine, and in a
# record of their own when they fill this part of a block, or are that many.
HOLDER_FILL, HOLDER_RECORD_ROWS = 0.75, 180
# Kinds of events that are written at once.
AT_ONCE = frozenset({"level", "alert", "oom_kill", "driver", "silence", "release", "test", "unclean", "incident"})
# Minimum time between writes of other events. Annotations, which programs may set by the thousand, are written with
# rows.
EVENTS_SECONDS = 5.0
# Maximum wait of a tick for its own write. After a timeout ticks do not wait until all writes are done.
URGENT_WAIT_SECONDS = 0.25
# Ticks that are queued while the disk hangs: a minute at ten per second, about 1 MB.
MAX_WAITING = 600


class _WorstTick(Struct):
    """The worst tick since rows were last written."""

    snapshot: Snapshot | None = None
    boottime: float = 0.0
    rank: tuple[int, float] = (0, 0.0)


class _LastTick(Struct):
    """The last tick at high or critical that was written: its levels and used fractions by target."""

    boottime: float = -math.inf
    levels: Mapping[str, Level] = {}
    ratios: Mapping[str, float] = {}

    def is_still(self, snapshot: Snapshot) -> bool:
        """Return True if the tick is like this one, and not critical."""
        levels = {one.target: one.level for one in snapshot.pressure}
        return (
            levels == self.levels
            and max(levels.values(), default=Level.CRITICAL) < Level.CRITICAL
            and all(abs(one.ratio - self.ratios[one.target]) < STILL_RATIO for one in snapshot.pressure)
        )


def _is_repeated(tick: Tick, last: Tick | None) -> bool:
    """Return True if all levels are OK and the last written tick, not long ago, says the same."""
    return (
        last is not None
        and tick.boottime - last.boottime <= SAME_TICK_SECONDS
        and all(one.level == Level.LOW for one in tick.pressure)
        and [one.target for one in tick.pressure] == [one.target for one in last.pressure]
        and all(
            one.level == before.level and abs(one.ratio - before.ratio) < STILL_RATIO
            for one, before in zip(tick.pressure, last.pressure, strict=True)
        )
        and _stated(tick) == _stated(last)
        and _holds_as_much(tick, last)
    )


def _stated(tick: Tick) -> tuple[object, ...]:
    states = [(one.id, one.state, one.throttled, one.errors) for one in tick.devices]
    return states, {one.pid: (one.name, one.device_bytes.keys()) for one in tick.processes}


def _holds_as_much(tick: Tick, last: Tick) -> bool:
    """Return True if each process holds as much, to a fraction of the largest pool that shows on no page."""
    most = STILL_RATIO * max((pool.size_bytes for pool in tick.pools), default=0)
    before = {one.pid: _held_bytes(one) for one in last.processes}
    return all(
        abs(here - there) <= most
        for one in tick.processes
        for here, there in zip(_held_bytes(one), before[one.pid], strict=True)
    )


def _held_bytes(holder: Holder) -> list[int]:
    on_devices = (holder.device_bytes[one] for one in sorted(holder.device_bytes))
    found = (holder.rss_bytes, holder.footprint_bytes, *on_devices)
    return [0 if isinstance(one, Absent) else one for one in found]


class HistoryWriter:
    """Writer of one state folder. Call `add` from the sampling thread; `status` is thread-safe."""

    def __init__(
        self, folder: Path, size_bytes: int, clock: Clock, boot_id: str, flush_seconds: float = FLUSH_SECONDS
    ) -> None:
        self.unclean_shutdown: UncleanShutdown | None = None
        self.files: Files = Files(folder, size_bytes, clock.wall())
        self._clock = clock
        self._boot = boot_bytes(boot_id)
        self._run = min(MAX_RUNS, 1 + max((stamp.run for stamp in self.files.ring_set.stamps), default=0))
        self._flush_seconds = flush_seconds
        self._history: Callable[[], History] = History
        self._holders = HolderHistory()
        self._events = EventLog()
        self._events_written, self._events_at, self._event_blocks = 0, -EVENTS_SECONDS, 0
        self._next = [0] * len(TIERS)
        self._next_holders = [0] * len(FILES)
        # The number of the first row of holders that is in no record, and blocks of rows since their last own one.
        self._holders_kept = self._fine_blocks = 0
        self._holders_due = False
        self._changed = threading.Condition()
        self._urgent: deque[tuple[Stamp, bytes]] = deque(maxlen=MAX_WAITING)
        self._chosen: deque[NotableTick] = deque(maxlen=100)
        self._worst, self._last = _WorstTick(), _LastTick()
        self._last_tick: Tick | None = None
        self._level = Level.LOW
        self._flush_now = self._events_due = self._rows_due = False
        self._stopping = self._writing = self._hangs = False
        self._writer = threading.Thread(target=self._write_until_stopped, name="store", daemon=True)

    def restore(
        self, history: Callable[[], History], holders: HolderHistory, ticks: NotableTicks, events: EventLog
    ) -> None:
        """Restore earlier runs, before the first tick. `history` is called every time: a reload may replace it."""
        self._history, self._holders, self._events = history, holders, events
        restored = restore(self.files.ring_set, history(), holders, ticks, events, self._stamp())
        self._events_written = events.last_seq
        self._event_blocks = sum(
            blocks_for(record.length) for record in self.files.ring_set.records("events", EVENTS)
        )
        self._next, self._next_holders = list(restored.next_rows), list(restored.next_holder_rows)
        self._holders_kept = holders.history.tiers[0].added
        self._holders_due = self._holders_kept > self._next_holders[0]
        self.unclean_shutdown = restored.unclean_shutdown
        self.files.forget_contents()
        events.on_add = self._on_event

    def start(self) -> None:
        self.files.start(self._stamp())
        if not self.files.append("flight", STARTED, self._stamp(), pack_number(self._events.last_seq)):
            # The next run will not know of this one, and will continue from the same number.
            self._events.continue_after(number_from_clock(self._clock.wall()))
        self.files.sync()
        self._writer.start()

    def add(
        self, snapshot: Snapshot, boottime: float, figures: Mapping[str, float], chosen: NotableTick | None
    ) -> None:
        """Record a tick. Call it after each tick, before the tick is published."""
        level = snapshot.worst_level or Level.LOW
        urgent = level >= Level.HIGH and not self._last.is_still(snapshot)
        at_rest = level >= Level.HIGH and not urgent and boottime - self._last.boottime >= STILL_SECONDS
        if urgent or at_rest:
            self._last = _LastTick(
                boottime,
                {one.target: one.level for one in snapshot.pressure},
                {one.target: one.ratio for one in snapshot.pressure},
            )
        data = pack(build_tick(snapshot, boottime, figures)) if urgent else b""
        with self._changed:
            self._note_worst(snapshot, boottime, is_preferred=at_rest)
            self._note_level(level)
            if chosen is not None:
                self._chosen.append(chosen)
            if self._events_are_due():
                self._events_due = True
                self._changed.notify_all()
            if urgent:
                if len(self._urgent) == MAX_WAITING:
                    self.files.dropped += 1
                self._urgent.append((Stamp(self._run, boottime, snapshot.unix, self._boot), data))
            if urgent or at_rest:
                self._rows_due |= at_rest
                self._changed.notify_all()
                self._wait_for_write()

    def stop(self, seconds: float = 0.7) -> None:
        """Write all pending data and a record of the clean stop, for at most `seconds`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._writer.is_alive():
            self._writer.join(seconds)
        if not self._writer.is_alive():  # else it still writes to them
            self.files.stop(seconds)

    def status(self) -> FilesStatus:
        return self.files.status()

    def _on_event(self, event: Event) -> None:
        """Wake the writer for an important event, and before too many numbers are on no disk."""
        many = event.seq - self._events_written >= MAX_UNWRITTEN
        if event.kind in AT_ONCE or (many and time.monotonic() >= self._events_at + EVENTS_SECONDS):
            with self._changed:
                self._events_due = True
                self._changed.notify_all()

    def _events_are_due(self) -> bool:
        unwritten = self._events.last_event_seq > self._events_written
        return unwritten and time.monotonic() >= self._events_at + EVENTS_SECONDS

    def _wait_for_write(self) -> None:
        """Wait for the write, with the lock held. After a timeout, do not wait until all writes are done."""
        if self._hangs:
            self._hangs = self._is_behind()
        if not self._hangs:
            self._hangs = not self._changed.wait_for(lambda: not self._is_behind(), URGENT_WAIT_SECONDS)

    def _is_behind(self) -> bool:
        return bool(self._urgent) or self._rows_due or self._writing

    def _note_worst(self, snapshot: Snapshot, boottime: float, is_preferred: bool) -> None:
        rank = max(((int(one.level), one.ratio) for one in snapshot.pressure), default=(0, 0.0))
        if self._worst.snapshot is None or rank >= self._worst.rank or is_preferred:
            self._worst = _WorstTick(snapshot, boottime, rank)

    def _note_level(self, level: Level) -> None:
        """Have rows written at once when the level rises from OK, and when it rises to high."""
        if level > self._level and (self._level is Level.LOW or self._level < Level.HIGH <= level):
            self._flush_now = True
            self._changed.notify_all()
        self._level = level

    def _write_until_stopped(self) -> None:
        flushed_at = time.monotonic() - max(0.0, self._flush_seconds - FIRST_FLUSH_SECONDS)
        while True:
            with self._changed:
                flush_at = flushed_at + self.max_row_age
                self._changed.wait_for(self._has_work, max(0.0, flush_at - time.monotonic()))
                stopping, flush, rows_due = self._stopping, self._flush_now or self._stopping, self._rows_due
                urgent, changes = list(self._urgent), self._events_due or bool(self._urgent)
                self._urgent.clear()
                self._flush_now, self._events_due, self._rows_due, self._writing = False, False, False, True
            self._write_urgent(urgent, changes, rows_due)
            if urgent:
                self.files.sync()
            if flush or (time.monotonic() >= flush_at and not rows_due):
                flushed_at = time.monotonic() - self.flush(stopping, at_once=flush)
            elif rows_due:
                self._flush_others(all_of_it=False)
                flushed_at = time.monotonic()
            if stopping:
                self.files.append("flight", STOPPED, self._stamp(), pack_number(self._events.last_seq))
            self.files.sync()
            if stopping:
                return

    @property
    def max_row_age(self) -> float:
        """Return the age in seconds at which a row is written."""
        return self._flush_seconds * (1.0 if self._level is Level.LOW else 0.5)

    def _has_work(self) -> bool:
        return self._is_behind() or self._events_due or self._stopping or self._flush_now

    def _write_urgent(self, urgent: list[tuple[Stamp, bytes]], changes: bool, rows_due: bool) -> None:
        for stamp, data in urgent:
            self.files.append("flight", TICK, stamp, data)
        if rows_due:
            self._flush_fine(at_once=True)
        if changes:
            self._write_events()
        with self._changed:
            self._writing = False
            self._changed.notify_all()

    def flush(self, all_of_it: bool = False, at_once: bool = False) -> float:
        """Write new rows, the worst tick among them, notable ticks and events.

        The newest rows stay in memory if the others then fill their blocks better, unless all are to be written
        `at_once`. Return the age of the oldest of them. Only the writer's thread calls this.
        """
        carried = self._flush_fine(at_once)
        self._flush_others(all_of_it)
        return carried

    def _flush_fine(self, at_once: bool) -> float:
        return self._write_rows(0, self._take_tick(), at_once) if self._new_rows(0) else 0.0

    def _flush_others(self, all_of_it: bool) -> None:
        for index, tier in enumerate(self._history().tiers[1:], start=1):
            finer = self._history().tiers[index - 1]
            batch = min(BATCH_ROWS[index], finer.spec.seconds / 2 // tier.spec.step_seconds)
            if self._new_rows(index) >= (1 if all_of_it else max(1, batch)):
                self._write_rows(index, b"", at_once=all_of_it)
        self._write_holders(all_of_it)
        with self._changed:
            chosen = list(self._chosen)
            self._chosen.clear()
        offset = self._clock.wall() - self._clock.boottime()
        for one in chosen:
            stamp = Stamp(self._run, one.boottime, one.boottime + offset, self._boot)
            self.files.append("ticks", TICK, stamp, one.data)
        self._write_events(again=True)

    def _take_tick(self) -> bytes:
        """Return the worst tick since rows were last written, encoded, or nothing if it was written before."""
        with self._changed:
            worst, self._worst = self._worst, _WorstTick()
        if worst.snapshot is None:
            return b""
        tick = build_tick(worst.snapshot, worst.boottime, {})
        if _is_repeated(tick, self._last_tick):
            return b""
        self._last_tick = tick
        return pack(tick)

    def _new_rows(self, index: int) -> int:
        return self._history().tiers[index].added - self._next[index]

    def _write_rows(self, index: int, tick: bytes, at_once: bool) -> float:
        """Write new rows of a tier. Return the age of the oldest row that is left for the next time."""
        rows, coming = self._history().written_since(index, self._next[index])
        holders, kept = (b"", self._holders_kept) if index else self._pack_holders()
        if at_once:
            entry, count = pack_entry(rows, tick, holders), len(rows.times)
        else:
            entry, count = pack_full_blocks(rows, tick, holders)
        if not self.files.append(TIERS[index], ROWS, self._stamp(), entry):
            self._last_tick = None
            return 0.0
        self._next[index] = coming - len(rows.times) + count
        self._holders_kept = kept
        self._fine_blocks += 0 if index else blocks_for(len(entry))
        return self._clock.boottime() - rows.times[count] if count < len(rows.times) else 0.0

    def _pack_holders(self) -> tuple[bytes, int]:
        """Return rows of holders for a record of other rows, and the number after them.

        There are none while they are few, and if a record of their own is due.
        """
        if self._holders.history.tiers[0].added - self._holders_kept < HOLDER_BATCH_ROWS[0]:
            return b"", self._holders_kept
        rows, coming = self._holders.written_since(0, self._holders_kept)
        titles = self._holders.titles()
        unwritten, _ = self._holders.written_since(0, self._next_holders[0])
        self._holders_due = (
            len(unwritten.times) >= self._most_holder_rows()
            or len(pack_holders(unwritten, titles)) >= HOLDER_FILL * BLOCK
        )
        return (b"", self._holders_kept) if self._holders_due else (pack_holders(rows, titles), coming)

    def _most_holder_rows(self) -> int:
        """Return how many rows of holders may be only in records of other rows: as long as these are read back."""
        fine = self.files.ring_set.rings.get("fine")
        if fine is None or self._fine_blocks >= fine.blocks // 2:
            return 0
        step = self._holders.history.tiers[0].spec.step_seconds
        return min(HOLDER_RECORD_ROWS, round(self._history().tiers[0].spec.seconds / 2 // step))

    def _write_holders(self, all_of_it: bool) -> None:
        for index, name in enumerate(FILES):
            new = self._holders.history.tiers[index].added - self._next_holders[index]
            is_due = new >= HOLDER_BATCH_ROWS[index] if index else self._holders_due
            if new and (all_of_it or is_due):
                rows, coming = self._holders.written_since(index, self._next_holders[index])
                entry = pack_holders(rows, self._holders.titles())
                if self.files.append(name, HOLDER_ROWS, self._stamp(), entry):
                    self._next_holders[index] = coming
                    if index == 0:
                        self._holders_kept, self._fine_blocks, self._holders_due = coming, 0, False

    def _write_events(self, again: bool = False) -> None:
        """Write the events that are not on disk yet. Events that cannot be written now stay pending.

        Half the ring has the events in memory that `choose_events` returns, and what came since. Beyond it they are
        written `again` to the other half, at a time when no tick waits: marks overwrite no other event.
        """
        self._events_at = time.monotonic()
        ring = self.files.ring_set.rings.get("events")
        if ring is None or (self._events.last_seq == self._events_written and not again):
            return
        half, last_seq = ring.blocks // 2, self._events.last_seq
        entries = pack_events(self._events.since(self._events_written))
        if is_full := self._event_blocks + count_blocks(entries) > half:
            if not again:
                self._flush_now = True
                return
            entries = choose_events(self._events, half)
        for entry in entries:
            if not self.files.append("events", EVENTS, self._stamp(), entry):
                return
        self._events_written = last_seq
        self._event_blocks = count_blocks(entries) + (0 if is_full else self._event_blocks)

    def _stamp(self) -> Stamp:
        return Stamp(self._run, self._clock.boottime(), self._clock.wall(), self._boot)
