"""One tier of the history: a bounded ring of rows at a fixed step, with one column per series.

The newest rows of a column are plain numbers, older ones are compressed.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import floor, inf, isnan, nan
from operator import add
from typing import NamedTuple, cast

from msgspec import Struct

# Rows that are compressed together: four minutes of the finest tier, 20 h of the coarsest.
BLOCK_ROWS = 240
# A mean is stored as its position between minimum and maximum, in this many steps.
PLACES = 65535
# zlib level. Higher levels save 2 % and take 50 % longer.
_LEVEL = 1
_FIGURE = 4  # bytes of a float32

_NO_FIGURES = array("f", [nan]) * BLOCK_ROWS
_NO_PLACES = array("H", [0]) * BLOCK_ROWS


class Aggregate(NamedTuple):
    """Minimum, mean and maximum of one series in the time of one row."""

    minimum: float
    mean: float
    maximum: float


def build_aggregate(figures: Sequence[float]) -> Aggregate:
    """Aggregate single readings, none of them a gap."""
    return Aggregate(min(figures), sum(figures) / len(figures), max(figures))


class Aggregates(NamedTuple):
    """One series over consecutive rows. NaN in `minimum` is a gap."""

    minimum: array[float]
    maximum: array[float]
    places: array[int]

    def between(self, start: int, end: int) -> Aggregates:
        return Aggregates(self.minimum[start:end], self.maximum[start:end], self.places[start:end])

    def combined(self) -> Aggregate | None:
        """Aggregate all rows. None if all of them are gaps."""
        if self.minimum and self.minimum == self.maximum:  # every row is a single reading, and none is a gap
            return build_aggregate(self.minimum)
        minimum: Sequence[float] = self.minimum
        maximum: Sequence[float] = self.maximum
        means = self.means()
        if any(map(isnan, minimum)):
            known = [index for index, value in enumerate(minimum) if value == value]
            minimum, maximum, means = ([column[index] for index in known] for column in (minimum, maximum, means))
        return Aggregate(min(minimum), sum(means) / len(means), max(maximum)) if minimum else None

    def means(self) -> Sequence[float]:
        """Return the mean of each row. For a single reading it is the reading itself."""
        if self.minimum == self.maximum:
            return self.minimum
        return [low + (high - low) * place / PLACES for low, high, place in zip(*self, strict=True)]


EMPTY_AGGREGATES = Aggregates(_NO_FIGURES, _NO_FIGURES, _NO_PLACES)


class Column:
    """A ring of blocks. float32 has 24 bits of precision: 8 KiB at 128 GiB, 1 byte at 16 MiB.

    A mean always lies between its bounds. Rows are added in the order of their numbers, block by block; `turn`
    begins the next block. A block of constant values is compressed to 4 bytes. A block of strongly varying values
    takes 500 bytes for single readings and 1,700 bytes otherwise.
    """

    __slots__ = ("_block", "_open", "_packed", "last")

    def __init__(self, rows: int, block: int) -> None:
        self.last: int = -1
        self._block = block
        self._open = EMPTY_AGGREGATES
        self._packed: list[bytes | None] = [None] * -(-rows // BLOCK_ROWS)

    def turn(self, block: int) -> None:
        """Compress the newest block, and begin block number `block`."""
        is_empty = self._open is EMPTY_AGGREGATES
        self._packed[self._block % len(self._packed)] = None if is_empty else pack(self._open)
        self._open = EMPTY_AGGREGATES
        self._block = block

    def put(self, number: int, aggregate: Aggregate | float) -> None:
        """Store the cell of a row. A number is a single reading."""
        if not isinstance(aggregate, Aggregate):
            self.put_run(number, array("f", (aggregate,)))
            return
        at = number % BLOCK_ROWS
        ring = self._writable()
        minimum, mean, maximum = aggregate
        span = maximum - minimum
        ring.minimum[at] = minimum
        ring.maximum[at] = maximum
        ring.places[at] = min(PLACES, max(0, round((mean - minimum) / span * PLACES))) if span > 0 else 0
        self.last = number

    def put_run(self, number: int, figures: array[float]) -> None:
        """Store single readings in rows of the newest block, starting at `number`."""
        at = number % BLOCK_ROWS
        here = slice(at, at + len(figures))
        ring = self._writable()
        ring.minimum[here] = ring.maximum[here] = figures
        self.last = number + len(figures) - 1

    def fill(self, number: int, aggregates: Aggregates) -> None:
        """Store cells in rows of the newest block, starting at `number`."""
        at, count = number % BLOCK_ROWS, len(aggregates.minimum)
        ring, here = self._writable(), slice(at, at + count)
        ring.minimum[here], ring.maximum[here], ring.places[here] = aggregates
        self.last = number + count - 1

    def aggregates(self, first: int, last: int) -> Aggregates:
        """Return a copy of the rows from `first` up to, but not including, `last`."""
        begin = self._block * BLOCK_ROWS
        if first >= begin:
            return self._open.between(first - begin, last - begin)
        found = None
        for block in range(first // BLOCK_ROWS, -(-last // BLOCK_ROWS)):
            begin = block * BLOCK_ROWS
            piece = self._unpack_block(block).between(max(0, first - begin), min(BLOCK_ROWS, last - begin))
            found = piece if found is None else Aggregates(*map(add, found, piece))
        return found or EMPTY_AGGREGATES.between(0, 0)

    def _writable(self) -> Aggregates:
        """Return the newest block. A series that has ended shares the empty one, which saves 2.4 KB."""
        if self._open is EMPTY_AGGREGATES:
            self._open = EMPTY_AGGREGATES.between(0, BLOCK_ROWS)
        return self._open

    def _unpack_block(self, block: int) -> Aggregates:
        if block == self._block:
            return self._open
        kept = self._packed[block % len(self._packed)]
        return EMPTY_AGGREGATES if kept is None else unpack(kept)


def pack(aggregates: Aggregates) -> bytes:
    """Compress a block: to a single value if all values are equal, else with zlib.

    Bytes of the same significance are grouped, because neighbouring values share their upper bytes. `maximum` is
    stored as its difference to `minimum`, which is 0 for single readings.
    """
    minimum, maximum = aggregates.minimum.tobytes(), aggregates.maximum.tobytes()
    if minimum == maximum == minimum[:_FIGURE] * BLOCK_ROWS:
        return minimum[:_FIGURE]
    planes = (
        _apart(minimum, _FIGURE)
        + _apart(difference(minimum, maximum), _FIGURE)
        + _apart(aggregates.places.tobytes(), 2)
    )
    return zlib.compress(planes, _LEVEL)


def unpack(block: bytes) -> Aggregates:
    if len(block) == _FIGURE:
        figures = array("f", block) * BLOCK_ROWS
        return Aggregates(figures, figures, _NO_PLACES)
    planes, size = zlib.decompress(block), _FIGURE * BLOCK_ROWS
    minimum = _together(planes[:size], _FIGURE)
    maximum = difference(minimum, _together(planes[size : 2 * size], _FIGURE))
    return Aggregates(array("f", minimum), array("f", maximum), array("H", _together(planes[2 * size :], 2)))


def _apart(raw: bytes, width: int) -> bytes:
    return b"".join(raw[place::width] for place in range(width))


def _together(planes: bytes, width: int) -> bytes:
    raw, count = bytearray(len(planes)), len(planes) // width
    for place in range(width):
        raw[place::width] = planes[place * count : (place + 1) * count]
    return bytes(raw)


def difference(one: bytes, other: bytes) -> bytes:
    """XOR two byte strings. Applied to one of them and the difference, it returns the other."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


# A plain number is a single reading.
Row = Mapping[str, Aggregate | float]


class RowBlock(NamedTuple):
    """Consecutive rows of all series, by column."""

    times: array[float]
    columns: Mapping[str, Aggregates]


class TierSpec(Struct, frozen=True):
    """Time span of a tier, and the time per row, both in seconds."""

    step_seconds: float
    seconds: float

    @property
    def rows(self) -> int:
        return max(1, round(self.seconds / self.step_seconds))


class SeriesSlice(Struct, frozen=True):
    """Consecutive rows of one series, as sequences of equal length. NaN in `minimum` is a gap."""

    times: Sequence[float]
    minimum: Sequence[float]
    mean: Sequence[float]
    maximum: Sequence[float]
    step_seconds: float


class Tier:
    """A ring of rows. Rows are numbered from the first one ever added; numbers outside the ring were overwritten.

    Not thread-safe: `History` holds the lock.
    """

    def __init__(self, length: TierSpec, max_series: int, begun: int = 0) -> None:
        self.spec = length
        self.rows: int = length.rows
        self.added: int = begun
        self._begun = begun
        self._columns: dict[str, Column] = {}
        self._max_series = max_series
        self._times = array("d", [nan]) * self.rows
        # The newest rows of single readings; they are written to the columns when a column is read.
        self._names: tuple[str, ...] = ()
        self._pending = array("f")

    def __len__(self) -> int:
        return self.added - self.first

    @property
    def columns(self) -> Mapping[str, Column]:
        """Return all series, in the order of their first row, with every row that was added."""
        self._settle()
        return self._columns

    @property
    def first(self) -> int:
        """Return the number of the oldest row in the ring."""
        return max(self._begun, self.added - self.rows)

    @property
    def end(self) -> float:
        """Return the time of the newest row; 0 before the first."""
        return self._times[(self.added - 1) % self.rows] if len(self) else 0.0

    @property
    def next_slot(self) -> float:
        """Return when the newest row's slot ends. Slots begin at multiples of the step."""
        return (self.slot_of(self.end) + 1) * self.spec.step_seconds if len(self) else -inf

    def slot_of(self, time: float) -> int:
        """Return the number of the last slot that begins at `time` or before."""
        step = self.spec.step_seconds
        slot = floor(time / step)  # of a rounded quotient: 13 × 10.1 / 10.1 is less than 13
        if (slot + 1) * step <= time:
            return slot + 1
        return slot - 1 if slot * step > time else slot

    def time_of(self, number: int) -> float:
        return self._times[number % self.rows]

    def add(self, at: float, row: Row) -> None:
        """Add a row. A new name gets a column; a missing name gets a gap."""
        self._begin_block()
        self._times[self.added % self.rows] = at
        figures = read_once(row)
        names = tuple(row)
        if figures is None or names != self._names:
            self._settle()
            self._names = names
        if figures is None:
            for name, aggregate in row.items():
                self._column(name, self.added).put(self.added, aggregate)
        else:
            self._pending += figures
        self.added += 1

    def number_at(self, time: float) -> int:
        """Return the number of the first row at `time` or later."""
        low, high = self.first, self.added
        while low < high:
            middle = (low + high) // 2
            if self.time_of(middle) < time:
                low = middle + 1
            else:
                high = middle
        return low

    def series_slice(self, name: str, first: int, last: int) -> SeriesSlice:
        """Return the rows of a series from `first` up to, but not including, `last`."""
        first, last = max(first, self.first), max(first, last, self.first)
        times = self._slice(self._times, first, last)
        column = self.columns.get(name)
        if column is None:
            nothing = [nan] * len(times)
            return SeriesSlice(times, nothing, nothing, nothing, self.spec.step_seconds)
        aggregates = column.aggregates(first, last)
        return SeriesSlice(
            times, aggregates.minimum, aggregates.means(), aggregates.maximum, self.spec.step_seconds
        )

    def row_block(self, first: int, last: int) -> RowBlock:
        """Return all series from row `first` up to, but not including, `last`, to be written to disk."""
        first, last = max(first, self.first), max(first, last, self.first)
        columns = {name: column.aggregates(first, last) for name, column in self.columns.items()}
        return RowBlock(self._slice(self._times, first, last), columns)

    def load(self, row_block: RowBlock) -> None:
        """Add rows that were read from disk."""
        self._settle()
        for name in row_block.columns:
            self._column(name, self.added)
        done = 0
        while done < len(row_block.times):
            self._begin_block()
            place = self.added % self.rows
            count = min(self.rows - place, BLOCK_ROWS - self.added % BLOCK_ROWS, len(row_block.times) - done)
            self._times[place : place + count] = row_block.times[done : done + count]
            for name, aggregates in row_block.columns.items():
                if column := self._columns.get(name):
                    column.fill(self.added, aggregates.between(done, done + count))
            self.added, done = self.added + count, done + count

    def drop(self, name: str) -> None:
        """Forget a series. Without it this does nothing."""
        self._settle()
        if self._columns.pop(name, None) is not None:
            self._names = ()

    def combined(self, first: int, last: int) -> Row:
        """Aggregate rows to one cell per series. A series with only gaps is left out."""
        first, last = max(first, self.first), max(first, last, self.first)
        width = len(self._names)
        pending = self.added - len(self._pending) // max(1, width)
        if pending <= first < last:  # all of them are pending and need not be written to their columns
            figures = self._pending[(first - pending) * width : (last - pending) * width]
            return {name: build_aggregate(figures[place::width]) for place, name in enumerate(self._names)}
        found = {name: column.aggregates(first, last).combined() for name, column in self.columns.items()}
        return {name: aggregate for name, aggregate in found.items() if aggregate is not None}

    def resized(self, length: TierSpec) -> Tier:
        """Return a tier of another length with the same rows and row numbers, as many as fit."""
        first = max(self.first, self.added - length.rows)
        other = Tier(length, self._max_series, first)
        other.load(self.row_block(first, self.added))
        return other

    def _begin_block(self) -> None:
        """If the next row is the first of a block, let the columns compress the previous block."""
        if self.added % BLOCK_ROWS == 0 and self.added > self._begun:
            for column in self.columns.values():
                column.turn(self.added // BLOCK_ROWS)

    def _settle(self) -> None:
        """Write pending rows to their columns. If that raises MemoryError, they stay pending."""
        if not self._pending:
            return
        width = len(self._names)
        first = self.added - len(self._pending) // width
        for place, name in enumerate(self._names):
            self._column(name, first).put_run(first, self._pending[place::width])
        self._pending = array("f")

    def _column(self, name: str, number: int) -> Column:
        """Return the column of a series, or create it for rows from `number` on.

        At the maximum number of series, the column without a new row for the longest time is dropped.
        """
        column = self._columns.get(name)
        if column is None:
            if len(self._columns) >= self._max_series:
                del self._columns[min(self._columns, key=lambda other: self._columns[other].last)]
            column = self._columns[name] = Column(self.rows, number // BLOCK_ROWS)
        return column

    def _slice(self, ring: array[float], first: int, last: int) -> array[float]:
        if first >= last:
            return ring[:0]
        start, end = first % self.rows, (last - 1) % self.rows + 1
        return ring[start:end] if start < end else ring[start:] + ring[:end]


def read_once(row: Row) -> array[float] | None:
    """Return the values of a row of single readings, or None for a row of cells."""
    try:
        return array("f", cast("Iterable[float]", row.values()))
    except TypeError:  # a cell is not a number
        return None
