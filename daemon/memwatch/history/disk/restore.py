"""Restore from disk: the history's tiers, notable ticks, events, and the end of a run that did not end cleanly."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.events import Event, EventLog
from memwatch.helper.codec import Garbled
from memwatch.history.column import Cell
from memwatch.history.disk.boot_timeline import shifts_of
from memwatch.history.disk.last_run import LAST_SECONDS, LastWords, last_words, samples_of
from memwatch.history.disk.record_codec import EVENTS, ROWS, STOPPED, TICK, events_in, rows_in
from memwatch.history.disk.ring_file import Record, Stamp
from memwatch.history.disk.ring_set import TIERS, Shelf
from memwatch.history.disk.row_codec import Unreadable
from memwatch.history.notable_ticks import KeptTick, KeptTicks, Tick, unpacked
from memwatch.history.tier import Strip
from memwatch.history.tiers import History

# Ticks are a few milliseconds early or late: this fraction of a row's time counts as complete.
SAME_ROW = 0.9


class Restored(Struct, frozen=True):
    """Result of a restore. `next_rows`: by tier, the number of the first row that is not on disk."""

    next_rows: tuple[int, ...]
    last_words: LastWords | None


class Reader:
    """Decodes payloads. `unreadable` counts intact records with a payload of another version."""

    def __init__(self, shelf: Shelf) -> None:
        self.unreadable = 0
        self._shelf = shelf

    def rows(self, name: str, record: Record) -> tuple[Strip, bytes] | None:
        try:
            return rows_in(self._shelf.payload(name, record))
        except Unreadable:
            self.unreadable += 1
            return None

    def events(self, record: Record) -> tuple[Event, ...]:
        try:
            return events_in(self._shelf.payload("events", record))
        except Garbled:
            self.unreadable += 1
            return ()

    def tick(self, name: str, record: Record) -> Tick | None:
        return self.tick_in(self._shelf.payload(name, record))

    def tick_in(self, data: bytes) -> Tick | None:
        try:
            return unpacked(data)
        except Garbled:
            self.unreadable += 1
            return None


def restore(shelf: Shelf, history: History, ticks: KeptTicks, events: EventLog, now: Stamp) -> Restored:
    """Fill `history`, `ticks` and `events` from the files."""
    shifts, reader = shifts_of(shelf.stamps, now), Reader(shelf)
    past = [
        _strips_of(reader, name, shelf.records(name, ROWS), tier.length.seconds, shifts)
        for name, tier in zip(TIERS, history.tiers, strict=True)
    ]
    next_rows = history.restore(past)
    _add_ticks(reader, history, shelf.records("flight", TICK), shifts)
    for record in shelf.records("ticks", TICK):
        ticks.add(KeptTick(record.stamp.boottime + shifts[record.stamp.boot], shelf.payload("ticks", record)))
    by_seq = {event.seq: event for record in shelf.records("events", EVENTS) for event in reader.events(record)}
    events.restore(by_seq[seq] for seq in sorted(by_seq))
    return Restored(next_rows, _last_words(reader, shelf, now.boot))


def _strips_of(
    reader: Reader, name: str, records: Sequence[Record], seconds: float, shifts: Mapping[bytes, float]
) -> Iterator[Strip]:
    """Yield the newest strips that fill a tier, oldest first, on this boot's time line, one at a time."""
    times = [record.stamp.boottime + shifts[record.stamp.boot] for record in records]
    for record, at in zip(records, times, strict=True):
        entry = reader.rows(name, record) if at >= times[-1] - seconds else None
        if entry is not None:
            strip, shift = entry[0], shifts[record.stamp.boot]
            yield Strip(array("d", [time + shift for time in strip.times]), strip.columns)


def _add_ticks(reader: Reader, history: History, records: Sequence[Record], shifts: Mapping[bytes, float]) -> None:
    """Add rows of the finest tier that were not written, computed from ticks that were."""
    began, end = len(history) > 0, history.end
    step = history.tiers[0].length.step_seconds
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
    row = {name: Cell(min(them), sum(them) / len(them), max(them)) for name, them in values.items()}
    history.add_row(group[-1].boottime, row)


def _last_words(reader: Reader, shelf: Shelf, boot: bytes) -> LastWords | None:
    """Return the end of the previous run, unless it recorded a clean stop."""
    flight = shelf.contents["flight"].records if "flight" in shelf.contents else ()
    if not flight or flight[-1].kind == STOPPED:
        return None
    run, ended = flight[-1].stamp.run, flight[-1].stamp.boot
    rows = [record for record in shelf.records("fine", ROWS) if record.stamp.run == run]
    written = [record for record in shelf.records("flight", TICK) if record.stamp.run == run]
    end = max((record.stamp.boottime for record in [*rows, *written]), default=0.0)
    recent = [record for record in written if record.stamp.boottime >= end - 2 * LAST_SECONDS]
    ticks = [tick for record in recent if (tick := reader.tick("flight", record)) is not None]
    samples = []
    for record in rows:
        entry = reader.rows("fine", record) if record.stamp.boottime >= end - 2 * LAST_SECONDS else None
        if entry is not None:
            strip, worst = entry
            samples += samples_of(strip, record.stamp.wall - record.stamp.boottime)
            tick = reader.tick_in(worst) if worst else None
            ticks += [] if tick is None else [tick]
    return last_words(ticks, samples, flight[-1].stamp.wall, ended != boot)
