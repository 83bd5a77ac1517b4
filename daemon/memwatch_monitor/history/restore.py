"""Restore from disk: the history, notable ticks, events and their numbers, and the end of an unclean run."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.events import EventLog
from memwatch.reporting.history.last_run import (
    LAST_SECONDS,
    UncleanShutdown,
    build_samples,
    build_unclean_shutdown,
)
from memwatch.reporting.history.notable_ticks import NotableTick, NotableTicks, Tick
from memwatch.reporting.history.tier import RowBlock, build_aggregate
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.records import (
    EVENTS,
    FILES,
    HOLDER_ROWS,
    MAX_SEQ,
    ROWS,
    STARTED,
    STOPPED,
    TICK,
    PayloadReader,
    unpack_titles,
)
from memwatch_monitor.history.ring_file import TIERS, UNKNOWN_BOOT, Record, RingSet, Stamp
from memwatch_monitor.history.tiers import History

# Numbers of events across runs: no number names two events, also after an unclean shutdown. Invariant: every number
# that a run gave to an event is at most `last + SKIPPED_NUMBERS`. `last` is the highest number in the files of the
# state folder. The writer is woken when `MAX_UNWRITTEN` numbers are not on disk. The rest of the distance is for a
# disk that fails or hangs meanwhile. A run that ends cleanly writes its last number, and the next run goes on from
# it. A run that cannot write from its start takes numbers from the clock.
MAX_UNWRITTEN = 4096
# 10,000 events a second for 100 s. 2^52 numbers suffice for 2^32 unclean shutdowns.
SKIPPED_NUMBERS = 1 << 20
_NUMBER = struct.Struct("<Q")


def pack_number(seq: int) -> bytes:
    """Encode the last number as the payload of the record of a start or a clean stop."""
    return _NUMBER.pack(seq)


def last_number(ring_set: RingSet, numbers: Iterable[int], unix: float) -> int:
    """Return a number that is at least as high as every number used by earlier runs; 0 if there were none.

    `numbers`: those of the events that were read.
    """
    newest = [record for kind in (STARTED, STOPPED) for record in ring_set.records("flight", kind)[-1:]]
    known = [*numbers, *filter(None, (_read_number(ring_set, record) for record in newest))]
    if ring_set.lost and not known:
        return number_from_clock(unix)
    last = max(known, default=0)
    return last if _ended_cleanly(ring_set) or not ring_set.stamps else last + SKIPPED_NUMBERS


def number_from_clock(unix: float) -> int:
    """Return the Unix time in milliseconds: above the numbers of most runs, below 2^52."""
    return int(unix * 1000)


def _ended_cleanly(ring_set: RingSet) -> bool:
    """Return True if the last record of the previous run has its last number, or no event can be missing.

    Version 0.1.0 wrote no number.
    """
    contents = ring_set.contents.get("flight")
    records = contents.records if contents else ()
    if not records or records[-1].kind != STOPPED:
        return False
    return bool(_read_number(ring_set, records[-1])) or not ring_set.lost


def _read_number(ring_set: RingSet, record: Record) -> int:
    payload = ring_set.payload("flight", record)
    number = int(_NUMBER.unpack(payload)[0]) if len(payload) == _NUMBER.size else 0
    return number if number < MAX_SEQ else 0


class _Boot(Struct, frozen=True):
    """The newest record of one boot: the daemon's run number, and the clocks."""

    run: int
    end: float
    wall_offset: float


def compute_shifts(stamps: Iterable[Stamp], now: Stamp) -> Mapping[bytes, float]:
    """Return the offset to add to the boot times of each boot.

    Runs are numbered, so their order does not depend on the wall clock; only the time the machine was off does. If
    by the clock a boot ended after the next one began, the clock was wrong, and the boot is moved before the next.
    """
    boots: dict[bytes, _Boot] = {}
    for stamp in stamps:
        known = boots.get(stamp.boot)
        if known is None or (stamp.run, stamp.boottime) >= (known.run, known.end):
            boots[stamp.boot] = _Boot(stamp.run, stamp.boottime, stamp.wall - stamp.boottime)
    shifts = {}
    bound, offset_now = 0.0, now.wall - now.boottime
    for name, boot in sorted(boots.items(), key=lambda item: item[1].run, reverse=True):
        if name == now.boot != UNKNOWN_BOOT and boot.end <= now.boottime:
            shifts[name] = 0.0
            continue
        shift = min(boot.wall_offset - offset_now, bound - boot.end)
        shifts[name] = bound = shift
    return shifts


def restore_holders(
    reader: PayloadReader, holders: HolderHistory, shifts: Mapping[bytes, float]
) -> tuple[int, ...]:
    """Load the holders of earlier runs. Return for each tier the number of the row after those of own records.

    The newest rows may stand only in records of other rows, which are read before.
    """
    titles: dict[str, str] = {}

    def read(blocks: Iterable[tuple[RowBlock, bytes]]) -> Iterator[RowBlock]:
        for rows, rest in blocks:
            titles.update(unpack_titles(rows, rest))
            yield rows

    loaded = holders.restore(
        [
            read(reader.row_blocks(name, HOLDER_ROWS, tier.spec.seconds, shifts))
            for name, tier in zip(FILES, holders.history.tiers, strict=True)
        ],
        titles,
    )
    if reader.holders:
        holders.restore([read(reader.holders), ()], titles)
    return loaded


# Ticks are a few milliseconds early or late: this fraction of a row's time counts as complete.
SAME_ROW = 0.9


class RestoreResult(Struct, frozen=True):
    """Result of a restore. `next_rows`: by tier, the number of the first row that is not on disk.

    `next_holder_rows`: the same for the history of holders.
    """

    next_rows: tuple[int, ...]
    next_holder_rows: tuple[int, ...]
    unclean_shutdown: UncleanShutdown | None


def restore(
    ring_set: RingSet, history: History, holders: HolderHistory, ticks: NotableTicks, events: EventLog, now: Stamp
) -> RestoreResult:
    """Fill `history`, `holders`, `ticks` and `events` from the files."""
    shifts, reader = compute_shifts(ring_set.stamps, now), PayloadReader(ring_set)
    past = [
        (rows for rows, _ in reader.row_blocks(name, ROWS, tier.spec.seconds, shifts))
        for name, tier in zip(TIERS, history.tiers, strict=True)
    ]
    next_rows = history.restore(past)
    next_holder_rows = restore_holders(reader, holders, shifts)
    _add_ticks(reader, history, ring_set.records("flight", TICK), shifts)
    for record, data in reader.notable_ticks(ring_set.records("ticks", TICK)):
        ticks.add(NotableTick(record.stamp.boottime + shifts[record.stamp.boot], data))
    by_seq = {event.seq: event for record in ring_set.records("events", EVENTS) for event in reader.events(record)}
    events.restore(by_seq[seq] for seq in sorted(by_seq))
    unclean_shutdown = _read_unclean_shutdown(reader, ring_set, now.boot)
    reader.report()
    events.continue_after(last_number(ring_set, by_seq, now.wall))
    return RestoreResult(next_rows, next_holder_rows, unclean_shutdown)


def _add_ticks(
    reader: PayloadReader, history: History, records: Sequence[Record], shifts: Mapping[bytes, float]
) -> None:
    """Add rows of the finest tier that were not written, computed from ticks that were."""
    began, end = len(history) > 0, history.end
    step = history.tiers[0].spec.step_seconds
    group: list[Tick] = []
    for record in records:
        at = record.stamp.boottime + shifts[record.stamp.boot]
        tick = reader.tick("flight", record) if not began or at > end else None
        if tick is None:
            continue
        if group and at - group[0].boottime >= SAME_ROW * step:
            _add_row(history, group)
            group = []
        group.append(replace(tick, boottime=at))
    if group:
        _add_row(history, group)


def _add_row(history: History, group: Sequence[Tick]) -> None:
    values: dict[str, list[float]] = {}
    for tick in group:
        for name, value in tick.figures.items():
            values.setdefault(name, []).append(value)
    row = {name: build_aggregate(them) for name, them in values.items()}
    history.add_row(group[-1].boottime, row)


def _read_unclean_shutdown(reader: PayloadReader, ring_set: RingSet, boot: bytes) -> UncleanShutdown | None:
    """Return the end of the previous run, unless it recorded a clean stop."""
    flight = ring_set.contents["flight"].records if "flight" in ring_set.contents else ()
    if not flight or flight[-1].kind == STOPPED:
        return None
    run, ended = flight[-1].stamp.run, flight[-1].stamp.boot
    rows = [record for record in ring_set.records("fine", ROWS) if record.stamp.run == run]
    written = [record for record in ring_set.records("flight", TICK) if record.stamp.run == run]
    end = max((record.stamp.boottime for record in [*rows, *written]), default=0.0)
    recent = [record for record in written if record.stamp.boottime >= end - 2 * LAST_SECONDS]
    ticks = [tick for record in recent if (tick := reader.tick("flight", record)) is not None]
    samples = []
    for record in rows:
        entry = reader.rows("fine", record) if record.stamp.boottime >= end - 2 * LAST_SECONDS else None
        if entry is not None:
            row_block, worst, _ = entry
            samples += build_samples(row_block, record.stamp.wall - record.stamp.boottime)
            tick = reader.decode_tick("fine", record, worst) if worst else None
            ticks += [] if tick is None else [tick]
    if not ticks and (repeated := reader.newest_fine_tick(rows)):
        ticks.append(repeated)  # no tick since said anything else
    return build_unclean_shutdown(ticks, samples, flight[-1].stamp.wall, ended != boot)
