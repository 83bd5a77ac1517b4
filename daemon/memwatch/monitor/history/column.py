"""One series of one tier: the newest rows as plain numbers, older rows compressed."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from math import isnan, nan
from operator import add
from typing import NamedTuple

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
        + _apart(_difference(minimum, maximum), _FIGURE)
        + _apart(aggregates.places.tobytes(), 2)
    )
    return zlib.compress(planes, _LEVEL)


def unpack(block: bytes) -> Aggregates:
    if len(block) == _FIGURE:
        figures = array("f", block) * BLOCK_ROWS
        return Aggregates(figures, figures, _NO_PLACES)
    planes, size = zlib.decompress(block), _FIGURE * BLOCK_ROWS
    minimum = _together(planes[:size], _FIGURE)
    maximum = _difference(minimum, _together(planes[size : 2 * size], _FIGURE))
    return Aggregates(array("f", minimum), array("f", maximum), array("H", _together(planes[2 * size :], 2)))


def _apart(raw: bytes, width: int) -> bytes:
    return b"".join(raw[place::width] for place in range(width))


def _together(planes: bytes, width: int) -> bytes:
    raw, count = bytearray(len(planes)), len(planes) // width
    for place in range(width):
        raw[place::width] = planes[place * count : (place + 1) * count]
    return bytes(raw)


def _difference(one: bytes, other: bytes) -> bytes:
    """XOR two byte strings. Applied to one of them and the difference, it returns the other."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
