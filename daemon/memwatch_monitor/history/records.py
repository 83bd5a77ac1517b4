"""Records of the ring files: rows of the history by column, largest holders, ticks and events."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import le
from typing import Any

from msgspec import Struct, field
from msgspec.json import encode

from memwatch.core.events import Event, EventLog
from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.core.snapshot_json import LAST_UNIX
from memwatch.reporting.history.notable_ticks import Tick, unpack
from memwatch.reporting.history.tier import Aggregates, RowBlock
from memwatch_monitor.history.holders import parse_name
from memwatch_monitor.history.ring_file import Record, RingSet, blocks_for

LENGTHS = struct.Struct("<II")
MAX_UNPACKED_BYTES = 16 << 20
MAX_ROWS = 4096
# Maximum distance from this boot in seconds, far beyond any valid date.
MAX_TIME = 1e12


def pack_rows(row_block: RowBlock) -> bytes:
    """Encode names and times, then minimum, maximum and mean of each series: little-endian, zlib-compressed."""
    head = json.dumps(
        {"rows": len(row_block.times), "names": list(row_block.columns)}, separators=(",", ":")
    ).encode()
    columns = b"".join(_to_bytes(ring) for aggregates in row_block.columns.values() for ring in aggregates)
    return zlib.compress(LENGTHS.pack(len(head), len(columns)) + head + _to_bytes(row_block.times) + columns, 6)


def unpack_rows(data: bytes) -> RowBlock:
    """Decode the result of `pack_rows`. Raises DecodeError for anything else."""
    try:
        plain = zlib.decompressobj().decompress(data, MAX_UNPACKED_BYTES)
        head_bytes, _ = LENGTHS.unpack_from(plain)
        head = json.loads(plain[LENGTHS.size : LENGTHS.size + head_bytes])
        rows, names = int(head["rows"]), [str(name) for name in head["names"]]
        if not 0 <= rows <= MAX_ROWS:
            raise ValueError(f"{rows} rows")
        reader = _ArrayReader(plain, LENGTHS.size + head_bytes)
        times = reader.take(array("d"), rows)
        if not all(abs(time) < MAX_TIME for time in times) or not all(map(le, times, times[1:])):
            raise ValueError("the times are out of range or not ascending")
        columns = {
            name: Aggregates(*(reader.take(array(code), rows) for code in ("f", "f", "H"))) for name in names
        }
    except (zlib.error, struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DecodeError(str(error)) from None
    return RowBlock(times, columns)


class _ArrayReader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, ring: array[Any], count: int) -> array[Any]:
        end = self._at + count * ring.itemsize
        if end > len(self._data):
            raise ValueError("the data is truncated")
        ring.frombytes(self._data[self._at : end])
        self._at = end
        if sys.byteorder == "big":
            ring.byteswap()
        return ring


def _to_bytes(ring: array[Any]) -> bytes:
    if sys.byteorder == "big":
        ring = ring[:]
        ring.byteswap()
    return ring.tobytes()


# Kinds of records, in addition to `ring_file.MENDED`.
ROWS, TICK, STARTED, STOPPED, EVENTS, HOLDER_ROWS = 1, 2, 3, 4, 5, 6
# Maximum size of events in a record. With the overhead per event, a record fits in a block.
SENTENCES_BYTES, AROUND_BYTES = 3000, 100
# The next number must be an integer that all JSON parsers represent exactly.
MAX_SEQ = 1 << 52
_LENGTH = struct.Struct("<I")


class EventBatch(Struct, frozen=True):
    """Events, oldest first."""

    events: tuple[Event, ...]


def pack_entry(row_block: RowBlock, worst: bytes = b"") -> bytes:
    """Encode rows, and the worst tick in their time with the processes that held the memory."""
    rows = pack_rows(row_block)
    return _LENGTH.pack(len(rows)) + rows + worst


def unpack_entry(payload: bytes) -> tuple[RowBlock, bytes]:
    """Decode rows, and return the encoded tick, if any. Raises DecodeError."""
    if len(payload) < _LENGTH.size:
        raise DecodeError("the data is truncated")
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return unpack_rows(payload[_LENGTH.size : end]), payload[end:]


def pack_events(events: Iterable[Event]) -> list[bytes]:
    """Encode events as payloads of records, each a line of JSON."""
    return [to_line(EventBatch(tuple(some))) for some in _by_the_block(events)]


def choose_events(log: EventLog, blocks: int) -> list[bytes]:
    """Encode the events to keep in that many blocks: the newest, and of those of programs each account's in turn.

    Events of programs have at most a quarter, or what others leave.
    """
    events, marks = log.since(0), log.marks_in_turn()
    of_programs = {one.seq for one in marks}
    others = pack_events([one for one in events if one.seq not in of_programs])
    needed = count_blocks(pack_events(marks))
    kept = _newest(others, blocks - min(needed, blocks // 4))
    room = blocks - count_blocks(kept)
    while marks and (needed := count_blocks(pack_events(marks))) > room:
        marks = marks[: min(len(marks) - 1, len(marks) * room // needed)]
    return [*kept, *pack_events(sorted(marks, key=lambda one: one.seq))]


def _newest(entries: Sequence[bytes], blocks: int) -> list[bytes]:
    kept: list[bytes] = []
    for entry in reversed(entries):
        blocks -= blocks_for(len(entry))
        if blocks < 0:
            break
        kept.append(entry)
    return kept[::-1]


def count_blocks(entries: Iterable[bytes]) -> int:
    return sum(blocks_for(len(entry)) for entry in entries)


def _by_the_block(events: Iterable[Event]) -> Iterator[list[Event]]:
    some: list[Event] = []
    room = SENTENCES_BYTES
    for event in events:
        weight = len(encode(event.text)) + AROUND_BYTES  # quotes and other alphabets take more bytes than letters
        if some and weight > room:
            yield some
            some, room = [], SENTENCES_BYTES
        some.append(event)
        room -= weight
    if some:
        yield some


def unpack_events(payload: bytes) -> tuple[Event, ...]:
    """Decode the events of a record. Raises DecodeError."""
    events = from_line(EventBatch, payload).events
    if not all(0 < event.seq < MAX_SEQ and 0 <= event.unix < LAST_UNIX for event in events):
        raise DecodeError(f"events with impossible numbers or times: {payload[:80]!r}")
    return events


# The files of the tiers.
FILES = ("medium", "coarse")


class Titles(Struct, frozen=True):
    """Titles of holders by kind and id."""

    titles: Mapping[str, str] = field(default_factory=dict)


def pack_holders(rows: RowBlock, titles: Mapping[str, str]) -> bytes:
    """Encode rows and the titles of the holders in them."""
    holders = {f"{parsed[0]}.{parsed[1]}" for parsed in map(parse_name, rows.columns) if parsed}
    return pack_entry(rows, to_line(Titles({one: titles[one] for one in sorted(holders & titles.keys())})))


def unpack_titles(data: bytes) -> Mapping[str, str]:
    """Return the titles, or none if another version wrote them: the series are then shown by their ids."""
    try:
        return from_line(Titles, data).titles
    except DecodeError:
        return {}


class PayloadReader:
    """Decodes payloads. `unreadable`: numbers of the records that cannot be decoded, by file."""

    def __init__(self, ring_set: RingSet) -> None:
        self.unreadable: defaultdict[str, set[int]] = defaultdict(set)
        self._ring_set = ring_set

    def rows(self, name: str, record: Record) -> tuple[RowBlock, bytes] | None:
        try:
            return unpack_entry(self._ring_set.payload(name, record))
        except DecodeError:
            self.unreadable[name].add(record.seq)
            return None

    def row_blocks(
        self, name: str, kind: int, seconds: float, shifts: Mapping[bytes, float]
    ) -> Iterator[tuple[RowBlock, bytes]]:
        """Yield the newest rows that fill a tier, oldest first, on this boot's time line, one record at a time.

        With each comes the data behind its rows.
        """
        records = self._ring_set.records(name, kind)
        times = [record.stamp.boottime + shifts[record.stamp.boot] for record in records]
        for record, at in zip(records, times, strict=True):
            entry = self.rows(name, record) if at >= times[-1] - seconds else None
            if entry is not None:
                (own_times, columns), rest = entry
                shift = shifts[record.stamp.boot]
                yield RowBlock(array("d", [time + shift for time in own_times]), columns), rest

    def events(self, record: Record) -> tuple[Event, ...]:
        try:
            return unpack_events(self._ring_set.payload("events", record))
        except DecodeError:
            self.unreadable["events"].add(record.seq)
            return ()

    def tick(self, name: str, record: Record) -> Tick | None:
        return self.decode_tick(name, record, self._ring_set.payload(name, record))

    def decode_tick(self, name: str, record: Record, data: bytes) -> Tick | None:
        try:
            return unpack(data)
        except DecodeError:
            self.unreadable[name].add(record.seq)
            return None

    def notable_ticks(self, records: Sequence[Record]) -> Iterator[tuple[Record, bytes]]:
        """Yield the records of notable ticks with their payloads, which stay encoded.

        A run is of one version, so its newest tick stands for all of them: decoding 2,000 takes 0.3 s. If that one
        cannot be decoded, each of the run is tried.
        """
        for _, group in groupby(records, key=lambda record: record.stamp.run):
            run = list(group)
            readable = self.tick("ticks", run[-1]) is not None
            for record in run:
                if readable or self.tick("ticks", record) is not None:
                    yield record, self._ring_set.payload("ticks", record)

    def report(self) -> None:
        """Count unreadable records as lost, with a sentence for each file."""
        for name, numbers in self.unreadable.items():
            records = "1 record" if len(numbers) == 1 else f"{len(numbers)} records"
            self._ring_set.lost += len(numbers)
            self._ring_set.complaints.append(
                f"{self._ring_set.rings[name].path}: {records} cannot be read by this version of memwatchd: "
                "left out; the version that wrote them can read them"
            )
