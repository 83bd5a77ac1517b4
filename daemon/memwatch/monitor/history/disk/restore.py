"""Restore from disk: the history's tiers, notable ticks, events, and the end of a run that did not end cleanly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.events import EventLog
from memwatch.monitor.history.column import Aggregate
from memwatch.monitor.history.disk.boot_timeline import compute_shifts
from memwatch.monitor.history.disk.event_numbers import last_number
from memwatch.monitor.history.disk.holder_records import restore_holders
from memwatch.monitor.history.disk.last_run import (
    LAST_SECONDS,
    UncleanShutdown,
    build_samples,
    build_unclean_shutdown,
)
from memwatch.monitor.history.disk.payload_reader import PayloadReader
from memwatch.monitor.history.disk.record_codec import EVENTS, ROWS, STOPPED, TICK
from memwatch.monitor.history.disk.ring_file import Record, Stamp
from memwatch.monitor.history.disk.ring_set import TIERS, RingSet
from memwatch.monitor.history.holder_history import HolderHistory
from memwatch.monitor.history.notable_ticks import NotableTick, NotableTicks, Tick
from memwatch.monitor.history.tiers import History

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
    row = {name: Aggregate(min(them), sum(them) / len(them), max(them)) for name, them in values.items()}
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
            row_block, worst = entry
            samples += build_samples(row_block, record.stamp.wall - record.stamp.boottime)
            tick = reader.decode_tick("fine", record, worst) if worst else None
            ticks += [] if tick is None else [tick]
    return build_unclean_shutdown(ticks, samples, flight[-1].stamp.wall, ended != boot)
