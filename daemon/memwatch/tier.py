"""One tier of history: rows at one step, in rings of plain columns that are made once and never grow."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, nan
from typing import NamedTuple, TypeVar

N = TypeVar("N", int, float)

# A mean is kept as its place between least and most, in so many steps.
PLACES = 65535
# float32, float32, uint16: what one series costs in one row.
CELL_BYTES = 10


class Cell(NamedTuple):
    """What one series did in one row's time."""

    least: float
    mean: float
    most: float


Row = Mapping[str, Cell]


class Cells(NamedTuple):
    """One series of consecutive rows as it lies in its column."""

    least: array[float]
    most: array[float]
    places: array[int]


class Strip(NamedTuple):
    """Consecutive rows of all series, as they lie in their columns."""

    times: array[float]
    columns: Mapping[str, Cells]


@dataclass(frozen=True, slots=True)
class Length:
    """How far back a tier goes, and how much time one row stands for."""

    step_seconds: float
    seconds: float

    @property
    def rows(self) -> int:
        return max(1, round(self.seconds / self.step_seconds))


class Column:
    """One series. float32 keeps 24 bits: 8 KiB of 128 GiB, 1 byte of 16 MiB; a mean lies between its bounds."""

    __slots__ = ("last", "least", "most", "places")

    def __init__(self, rows: int) -> None:
        self.least = array("f", [nan]) * rows
        self.most = array("f", [nan]) * rows
        self.places = array("H", [0]) * rows
        self.last = -1

    def put(self, at: int, cell: Cell) -> None:
        least, mean, most = cell
        self.least[at] = least
        self.most[at] = most
        span = most - least
        self.places[at] = min(PLACES, max(0, round((mean - least) / span * PLACES))) if span > 0 else 0

    def clear(self, at: int) -> None:
        self.least[at] = nan


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive rows of one series, as lists of the same length; NaN in `least` is a gap."""

    times: Sequence[float]
    least: Sequence[float]
    mean: Sequence[float]
    most: Sequence[float]
    step_seconds: float


class Tier:
    """A ring of rows. Rows are numbered from the first ever added; a number outside the ring is gone.

    Not safe for threads: `History` holds the lock.
    """

    def __init__(self, length: Length, most_series: int, begun: int = 0) -> None:
        self.length = length
        self.rows = length.rows
        self.added = self._begun = begun
        self.columns: dict[str, Column] = {}
        self._most_series = most_series
        self._times = array("d", [nan]) * self.rows

    def __len__(self) -> int:
        return self.added - self.first

    @property
    def first(self) -> int:
        """The number of the oldest row that is still there."""
        return max(self._begun, self.added - self.rows)

    @property
    def end(self) -> float:
        """The time of the newest row; 0 before the first."""
        return self._times[(self.added - 1) % self.rows] if len(self) else 0.0

    @property
    def next_slot(self) -> float:
        """When the time of the newest row is over; rows stand for times that are multiples of the step."""
        return (self.slot_of(self.end) + 1) * self.length.step_seconds if len(self) else -inf

    def slot_of(self, time: float) -> int:
        return floor(time / self.length.step_seconds)

    def time_of(self, number: int) -> float:
        return self._times[number % self.rows]

    def add(self, at: float, row: Row) -> None:
        """Add a row. A name not seen before gets a column; a name not given gets a gap."""
        place = self.added % self.rows
        self._times[place] = at
        for name, cell in row.items():
            column = self.columns.get(name) or self._new_column(name)
            column.put(place, cell)
            column.last = self.added
        if len(row) != len(self.columns):
            for name in self.columns.keys() - row.keys():
                self.columns[name].clear(place)
        self.added += 1

    def number_at(self, time: float) -> int:
        """The number of the first row at `time` or later."""
        low, high = self.first, self.added
        while low < high:
            middle = (low + high) // 2
            if self.time_of(middle) < time:
                low = middle + 1
            else:
                high = middle
        return low

    def stretch(self, name: str, first: int, last: int) -> Stretch:
        """The rows from number `first` up to, without, `last`."""
        first, last = max(first, self.first), max(first, last, self.first)
        times = self._slice(self._times, first, last)
        column = self.columns.get(name)
        if column is None:
            nothing = [nan] * len(times)
            return Stretch(times, nothing, nothing, nothing, self.length.step_seconds)
        least, most = self._slice(column.least, first, last), self._slice(column.most, first, last)
        places = self._slice(column.places, first, last)
        mean = [low + (high - low) * place / PLACES for low, high, place in zip(least, most, places, strict=True)]
        return Stretch(times, least, mean, most, self.length.step_seconds)

    def strip(self, first: int, last: int) -> Strip:
        """The rows from number `first` up to, without, `last`, to be written down."""
        first, last = max(first, self.first), max(first, last, self.first)
        columns = {
            name: Cells(*(self._slice(ring, first, last) for ring in (column.least, column.most, column.places)))
            for name, column in self.columns.items()
        }
        return Strip(self._slice(self._times, first, last), columns)

    def load(self, strip: Strip) -> None:
        """Add rows that were written down, all at once."""
        for name in strip.columns.keys() - self.columns.keys():
            self._new_column(name)
        done = 0
        while done < len(strip.times):
            place = self.added % self.rows
            count = min(self.rows - place, len(strip.times) - done)
            here, there = slice(place, place + count), slice(done, done + count)
            self._times[here] = strip.times[there]
            for name, column in self.columns.items():
                cells = strip.columns.get(name)
                if cells is None:
                    column.least[here] = array("f", [nan]) * count
                    continue
                column.least[here], column.most[here] = cells.least[there], cells.most[there]
                column.places[here] = cells.places[there]
                column.last = self.added + count - 1
            self.added, done = self.added + count, done + count

    def gathered(self, first: int, last: int) -> Row:
        """One cell a series for these rows; a series without a figure in any of them is left out."""
        cells = {name: cell_of(self.stretch(name, first, last)) for name in self.columns}
        return {name: cell for name, cell in cells.items() if cell is not None}

    def resized(self, length: Length) -> Tier:
        """A tier of another length with the same past under the same numbers, as much of it as fits."""
        first = max(self.first, self.added - length.rows)
        other = Tier(length, self._most_series, first)
        other.load(self.strip(first, self.added))
        return other

    def _new_column(self, name: str) -> Column:
        """A column; beyond the most there may be, the one that has been silent for longest gives its place."""
        if len(self.columns) >= self._most_series:
            silent = min(self.columns, key=lambda other: self.columns[other].last)
            del self.columns[silent]
        column = self.columns[name] = Column(self.rows)
        return column

    def _slice(self, ring: array[N], first: int, last: int) -> array[N]:
        if first >= last:
            return ring[:0]
        start, end = first % self.rows, (last - 1) % self.rows + 1
        return ring[start:end] if start < end else ring[start:] + ring[:end]


def cell_of(stretch: Stretch) -> Cell | None:
    """What a series did in all these rows; None if it has no figure in them."""
    least = [value for value in stretch.least if value == value]
    if not least:
        return None
    if len(least) == len(stretch.least):
        mean: Sequence[float] = stretch.mean
        most: Sequence[float] = stretch.most
    else:
        mean = [value for value, low in zip(stretch.mean, stretch.least, strict=True) if low == low]
        most = [value for value, low in zip(stretch.most, stretch.least, strict=True) if low == low]
    return Cell(min(least), sum(mean) / len(mean), max(most))
