"""Records of the ring files: rows of the history by column, largest holders, ticks and events."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, chain, groupby, islice, repeat
from operator import add, itemgetter, le, sub
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.json import encode

from memwatch.core.events import Event, EventLog
from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.core.snapshot_json import LAST_UNIX
from memwatch.reporting.history.notable_ticks import Tick, unpack
from memwatch.reporting.history.tier import PLACES, Aggregates, RowBlock, difference
from memwatch_monitor.history.holders import parse_name
from memwatch_monitor.history.ring_file import BLOCK, HEAD_BYTES, Record, RingSet, blocks_for

LENGTHS = struct.Struct("<II")
MAX_UNPACKED_BYTES = 16 << 20
MAX_ROWS = 4096
# Times that rows are packed to fill their blocks.
FITTING_TRIES = 3
# Maximum distance from this boot in seconds, far beyond any valid date.
MAX_TIME = 1e12


# Cells that a record may unpack to. Series that stand still take no bytes for their rows.
MAX_CELLS = MAX_UNPACKED_BYTES // 10
# Added to each difference, so that the upper bytes of a small one are the same whatever its sign.
_MIDDLE, _ALL_BITS = 0x80808080, (1 << 64) - 1
# A Huffman table takes about this many bytes, and as many more for each symbol.
_TABLE_BYTES, _SYMBOL_BYTES = 16.0, 0.7
# A number in a name. Each digit of a name belongs to one, so that a pattern with 0 for each has no other digits.
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")
# Fields of the head of rows, which is a list. Earlier formats have an object, with other fields.
_FIELDS = ("count", "plan", "patterns", "numbers")
_MILLISECOND = 1_000_000  # nanoseconds
# Bits of a byte that takes one of N values, about 85 % of those if all were as frequent.
_BITS = (0.0, *(0.85 * math.log2(values) for values in range(1, 257)))


class _Column(NamedTuple):
    """A series as it is packed: bits of its largest difference, and its differences from reading to reading.

    `spread` is 0 if the series stands still.
    """

    spread: int
    first: array[int]
    steps: Sequence[int] = ()
    ranges: bytes = b""
    places: bytes = b""


def pack_rows(row_block: RowBlock) -> bytes:
    """Encode names, times and readings, exactly, and means to a step of float32.

    A series that stands still is its first reading. For others there is the difference of each minimum to the one
    before and to its maximum, in steps of float32. Series that move equally far stand together. zlib compresses
    bytes of one significance, with a Huffman table for each group if that takes fewer bytes.
    """
    rows = len(row_block.times)
    patterns, numbers = _split_names(tuple(row_block.columns))
    columns = [_differences(one) for one in row_block.columns.values()]
    moments, plan = _moments(row_block.times)
    head = json.dumps([rows, plan, patterns, numbers], separators=(",", ":")).encode()
    spreads = bytes(one.spread for one in columns)
    moving = sorted((one for one in columns if one.spread), key=itemgetter(0))
    groups = [list(group) for _, group in groupby(moving, itemgetter(0))]
    firsts = _to_bytes(array("I", chain.from_iterable(one.first for one in columns)))
    times = _to_bytes(moments)
    steps = [_to_middle(one.steps for one in group) for group in groups]
    ranges = [b"".join(one.ranges for one in group) for group in groups]
    places = [b"".join(one.places for one in group) for group in groups]
    planes = [
        raw[significance::width]
        for raws, width in (([times], 8), ([firsts], 4), (steps, 4), (ranges, 4), (places, 2))
        for significance in range(width)
        for raw in raws
    ]
    return _compress([LENGTHS.pack(len(head), len(spreads)) + head, spreads, *planes])


def _compress(planes: Iterable[bytes]) -> bytes:
    """Compress planes of bytes, with a new Huffman table before each that differs enough from those before it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_FILTERED)
    packed: list[bytes] = []
    count, values = 0, set[int]()
    for plane in planes:
        own = set(plane)
        if len(own) > 1:
            both, size = values | own, len(plane)
            apart = _estimate_bytes(count, len(values)) + _estimate_bytes(size, len(own))
            if count and apart < _estimate_bytes(count + size, len(both)):
                packed.append(packer.flush(zlib.Z_BLOCK))
                count, values = size, own
            else:
                count, values = count + size, both
        packed.append(packer.compress(plane))
    return b"".join(packed) + packer.flush()


def _estimate_bytes(count: int, values: int) -> float:
    """Return about how many bytes a part takes with that many different values. It is stored if that is less."""
    return min(count + 5.0, count * _BITS[values] / 8 + _TABLE_BYTES + _SYMBOL_BYTES * values)


@lru_cache(maxsize=2)  # the machine's and those of holders are the same in many records
def _split_names(names: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """Return names with 0 for each number, and each number minus the one at that place in the name before it.

    Names of many cards are then few patterns, again and again.
    """
    patterns, steps = list[str](), list[int]()
    before: list[int] = []
    for name in names:
        numbers = [int(one) for one in _NUMBER.findall(name)]
        patterns.append(_NUMBER.sub("0", name))
        steps += map(sub, numbers, chain(before, repeat(0)))
        before[: len(numbers)] = numbers
    return patterns, steps


@lru_cache(maxsize=2)
def _join_names(patterns: tuple[str, ...], steps: tuple[int, ...]) -> list[str]:
    """Return the names that `_split_names` was given."""
    names, rest, before = list[str](), iter(steps), list[int]()
    for pattern in patterns:
        first, *others = pattern.split("0")
        numbers = list(map(add, islice(rest, len(others)), chain(before, repeat(0))))
        before[: len(numbers)] = numbers
        names.append(first + "".join(f"{number}{text}" for number, text in zip(numbers, others, strict=True)))
    return names


def _moments(times: array[float]) -> tuple[array[int], list[int]]:
    """Return how many nanoseconds each row is late, and the time and the step of rows that are never late.

    The clock reads whole nanoseconds. Without a plan, the differences of the bits of times that are none.
    """
    nanoseconds = [round(time * 1e9) for time in times]
    if all(0 <= whole < 1 << 53 for whole in nanoseconds) and [one / 1e9 for one in nanoseconds] == list(times):
        seconds = times[-1] - times[0] if times else 0.0
        step = round(1e3 * seconds / max(1, len(times) - 1)) * _MILLISECOND
        late = list(map(sub, nanoseconds, map(step.__mul__, range(len(times)))))
        begin = min(late, default=0)
        return array("Q", map(sub, late, repeat(begin))), [begin, step]
    bits = array("Q", times.tobytes())
    return array("Q", map(_ALL_BITS.__and__, map(sub, bits, chain((0,), bits)))), []


def _differences(aggregates: Aggregates) -> _Column:
    minimum = array("I", aggregates.minimum.tobytes())
    maximum = array("I", aggregates.maximum.tobytes())
    first, is_single = minimum[:1], minimum == maximum
    if is_single and minimum == first * len(minimum):
        return _Column(0, first)
    steps = list(map(sub, minimum[1:], minimum))
    spread = max(1, max(map(abs, steps), default=0).bit_length())
    if is_single:
        nothing = bytes(len(minimum))
        return _Column(spread, first, steps, nothing * 4, nothing * 2)
    ranges = _low_words(array("q", map(sub, maximum, minimum)))
    places = array("H", map(_round_mean, aggregates.places, ranges))
    return _Column(spread, first, steps, _to_bytes(ranges), _to_bytes(places))


def _round_mean(place: int, steps: int) -> int:
    """Return the place of a mean, without bits that are finer than a step of float32 between its bounds."""
    unused = max(0, PLACES.bit_length() - steps.bit_length())
    return min(PLACES, (place + (1 << unused >> 1)) >> unused << unused)


def _to_middle(differences: Iterable[Sequence[int]]) -> bytes:
    sums = array("q", map(_MIDDLE.__add__, chain.from_iterable(differences)))
    return _to_bytes(_low_words(sums))


def _low_words(numbers: array[int]) -> array[int]:
    """Return the lower 32 bits of 64."""
    raw = memoryview(_to_bytes(numbers)).cast("I")[::2]
    return _from_bytes(array("I"), raw.tobytes())


def unpack_rows(data: bytes) -> tuple[RowBlock, bytes]:
    """Decode the result of `pack_rows`, also of earlier formats, and return the data that follows it.

    Raises DecodeError for anything else.
    """
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, MAX_UNPACKED_BYTES)
        head_bytes, _ = LENGTHS.unpack_from(plain)
        head = json.loads(plain[LENGTHS.size : LENGTHS.size + head_bytes])
        if isinstance(head, list):
            head = dict(zip(_FIELDS, head, strict=True))
        rows, names = int(head["rows" if "rows" in head else "count"]), _read_names(head)
        if not 0 <= rows <= MAX_ROWS or rows * len(names) > MAX_CELLS:
            raise ValueError(f"{rows} rows of {len(names)} series")
        reader = _ArrayReader(plain, LENGTHS.size + head_bytes)
        read = _read_first_format if "rows" in head else _read_rows
        times, columns = read(reader, rows, len(names), head)
        if not all(abs(time) < MAX_TIME for time in times) or not all(map(le, times, times[1:])):
            raise ValueError("the times are out of range or not ascending")
    except (zlib.error, struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DecodeError(str(error)) from None
    return RowBlock(times, dict(zip(names, columns, strict=True))), unpacker.unused_data


def _read_names(head: Mapping[str, Any]) -> list[str]:
    if "patterns" in head:
        return _join_names(tuple(map(str, head["patterns"])), tuple(map(int, head["numbers"])))
    return [str(name) for name in head["names"]]


def _read_first_format(
    reader: _ArrayReader, rows: int, series: int, _: Mapping[str, Any]
) -> tuple[array[float], list[Aggregates]]:
    times = reader.take(array("d"), rows)
    return times, [Aggregates(*(reader.take(array(code), rows) for code in "ffH")) for _ in range(series)]


def _read_rows(
    reader: _ArrayReader, rows: int, series: int, head: Mapping[str, Any]
) -> tuple[array[float], list[Aggregates]]:
    spreads = reader.take(array("B"), series)
    moving = sorted(filter(spreads.__getitem__, range(series)), key=spreads.__getitem__)
    times = _read_times(reader.take_planes(array("Q"), rows), head)
    firsts = reader.take_planes(array("I"), series if rows else 0)
    steps = reader.take_planes(array("I"), max(0, rows - 1) * len(moving))
    ranges = reader.take_planes(array("I"), rows * len(moving))
    places = reader.take_planes(array("H"), rows * len(moving))
    sums, middles = array("q"), range(0, rows * _MIDDLE, _MIDDLE)
    for place, at in enumerate(moving):
        own = steps[place * (rows - 1) : (place + 1) * (rows - 1)]
        sums.extend(map(sub, accumulate(chain(firsts[at : at + 1], own)), middles))
    lowest, readings, still = _low_words(sums), array("f", firsts.tobytes()), array("H", [0]) * rows
    if "names" in head:  # the second format
        highest = difference(lowest.tobytes(), ranges.tobytes())
    elif any(ranges):
        highest = _low_words(array("q", map(add, lowest, ranges))).tobytes()
    else:
        highest = lowest.tobytes()
    minima, maxima = array("f", lowest.tobytes()), array("f", highest)
    columns = [
        Aggregates(readings[at : at + 1] * rows, readings[at : at + 1] * rows, still) for at in range(series)
    ]
    for place, at in enumerate(moving):
        own_rows = slice(place * rows, (place + 1) * rows)
        columns[at] = Aggregates(minima[own_rows], maxima[own_rows], places[own_rows])
    return times, columns


def _read_times(moments: array[int], head: Mapping[str, Any]) -> array[float]:
    if head.get("plan"):
        begin, step = map(int, head["plan"])
        return array("d", [(late + begin + at * step) / 1e9 for at, late in enumerate(moments)])
    sums = array("Q", map(_ALL_BITS.__and__, accumulate(moments)))
    return array("d", [one / 1e9 for one in sums] if head.get("nanoseconds") else sums.tobytes())


class _ArrayReader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, ring: array[Any], count: int) -> array[Any]:
        return _from_bytes(ring, self._take_bytes(count * ring.itemsize))

    def take_planes(self, ring: array[Any], count: int) -> array[Any]:
        """Take numbers whose bytes are grouped by significance, the lowest ones first."""
        width, raw = ring.itemsize, bytearray(count * ring.itemsize)
        for significance in range(width):
            raw[significance::width] = self._take_bytes(count)
        return _from_bytes(ring, raw)

    def _take_bytes(self, count: int) -> bytes:
        begin, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise ValueError("the data is truncated")
        return self._data[begin : self._at]


def _from_bytes(ring: array[Any], raw: bytes | bytearray) -> array[Any]:
    ring.frombytes(raw)
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


class Entry(NamedTuple):
    """A record of rows. `rest`: the encoded worst tick in their time, if any, or the titles of holders.

    `holders`: new rows of the largest holders, as `pack_holders` encodes them, or nothing.
    """

    rows: RowBlock
    rest: bytes
    holders: bytes


def pack_entry(row_block: RowBlock, worst: bytes = b"", holders: bytes = b"") -> bytes:
    """Encode rows, and the worst tick in their time with the processes that held the memory.

    Rows of holders follow the compressed rows. Versions that do not know of them ignore them there.
    """
    rows = pack_rows(row_block) + holders
    return _LENGTH.pack(len(rows)) + rows + worst


def pack_full_blocks(row_block: RowBlock, worst: bytes, holders: bytes = b"") -> tuple[bytes, int]:
    """Encode rows, oldest first, and the others. Return how many rows: as many as take the fewest blocks each.

    A last block that is almost empty costs as much as a full one.
    """
    rows = len(row_block.times)
    entry, count = pack_entry(row_block, worst, holders), rows
    blocks = blocks_for(len(entry))
    if blocks == 1 or rows == 1:
        return entry, rows
    fixed = len(pack_entry(_first_rows(row_block, 1), worst, holders))
    per_row = max(1.0, (len(entry) - fixed) / (rows - 1))
    room = (blocks - 1) * BLOCK - HEAD_BYTES
    for _ in range(FITTING_TRIES):
        count = min(count - 1, 1 + int((room - fixed) / per_row))
        if (blocks - 1) * rows >= blocks * count:
            break
        fewer = pack_entry(_first_rows(row_block, count), worst, holders)
        if len(fewer) <= room:
            return fewer, count
        per_row = (len(fewer) - fixed) / (count - 1)
    return entry, rows


def _first_rows(row_block: RowBlock, count: int) -> RowBlock:
    columns = {name: aggregates.between(0, count) for name, aggregates in row_block.columns.items()}
    return RowBlock(row_block.times[:count], columns)


def unpack_entry(payload: bytes) -> Entry:
    """Decode rows. Raises DecodeError."""
    data, rest = _split_entry(payload)
    rows, holders = unpack_rows(data)
    return Entry(rows, rest, holders)


def _split_entry(payload: bytes) -> tuple[bytes, bytes]:
    if len(payload) < _LENGTH.size:
        raise DecodeError("the data is truncated")
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return payload[_LENGTH.size : end], payload[end:]


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
    """Titles of holders, in the order of their first series, or by kind and id as earlier versions wrote them."""

    in_order: tuple[str, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)


def pack_holders(rows: RowBlock, titles: Mapping[str, str]) -> bytes:
    """Encode rows and the titles of the holders in them."""
    return pack_entry(rows, to_line(Titles(tuple(titles.get(one, "") for one in _holders_in(rows)))))


def unpack_titles(rows: RowBlock, data: bytes) -> Mapping[str, str]:
    """Return the titles, or none if another version wrote them: the series are then shown by their ids."""
    try:
        titles = from_line(Titles, data)
    except DecodeError:
        return {}
    in_order = {one: title for one, title in zip(_holders_in(rows), titles.in_order, strict=False) if title}
    return {**titles.titles, **in_order}


def _holders_in(rows: RowBlock) -> list[str]:
    return list(dict.fromkeys(f"{one[0]}.{one[1]}" for one in map(parse_name, rows.columns) if one))


def _shifted(rows: RowBlock, shift: float) -> RowBlock:
    return RowBlock(array("d", [time + shift for time in rows.times]), rows.columns)


class PayloadReader:
    """Decodes payloads. `unreadable`: numbers of the records that cannot be decoded, by file.

    `holders`: rows of holders that stood in records of other rows, with their titles.
    """

    def __init__(self, ring_set: RingSet) -> None:
        self.unreadable: defaultdict[str, set[int]] = defaultdict(set)
        self.holders: list[tuple[RowBlock, bytes]] = []
        self._ring_set = ring_set

    def rows(self, name: str, record: Record) -> Entry | None:
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
                shift = shifts[record.stamp.boot]
                if entry.holders:
                    self._keep_holders(name, record, entry.holders, shift)
                yield _shifted(entry.rows, shift), entry.rest

    def _keep_holders(self, name: str, record: Record, data: bytes, shift: float) -> None:
        try:
            rows, titles, _ = unpack_entry(data)
        except DecodeError:
            self.unreadable[name].add(record.seq)
        else:
            self.holders.append((_shifted(rows, shift), titles))

    def events(self, record: Record) -> tuple[Event, ...]:
        try:
            return unpack_events(self._ring_set.payload("events", record))
        except DecodeError:
            self.unreadable["events"].add(record.seq)
            return ()

    def newest_fine_tick(self, records: Sequence[Record]) -> Tick | None:
        """Return the newest tick among those that came with rows."""
        for record in reversed(records):
            with suppress(DecodeError):
                if data := _split_entry(self._ring_set.payload("fine", record))[1]:
                    return unpack(data)
        return None

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
