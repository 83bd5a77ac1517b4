"""One series of one tier: its newest rows as plain numbers, those before them packed."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from math import isnan, nan
from operator import add
from typing import NamedTuple

# Rows that are packed together: four minutes of the finest tier, 20 h of the coarsest.
BLOCK_ROWS = 240
# A mean is kept as its place between least and most, in so many steps.
PLACES = 65535
# Higher ones gain a 50th, for half as much time again.
_LEVEL = 1
_FIGURE = 4  # bytes of a float32

_NO_FIGURES = array("f", [nan]) * BLOCK_ROWS
_NO_PLACES = array("H", [0]) * BLOCK_ROWS


class Cell(NamedTuple):
    """What one series did in one row's time."""

    least: float
    mean: float
    most: float


def cell_of(figures: Sequence[float]) -> Cell:
    """Of figures that were read once each, none of them a gap."""
    return Cell(min(figures), sum(figures) / len(figures), max(figures))


class Cells(NamedTuple):
    """One series of consecutive rows; NaN in `least` is a gap."""

    least: array[float]
    most: array[float]
    places: array[int]

    def between(self, start: int, end: int) -> Cells:
        return Cells(self.least[start:end], self.most[start:end], self.places[start:end])

    def gathered(self) -> Cell | None:
        """What the series did in all these rows; None if it has no figure in them."""
        if self.least and self.least == self.most:  # each was read once, and none is a gap
            return cell_of(self.least)
        least: Sequence[float] = self.least
        most: Sequence[float] = self.most
        means = self.means()
        if any(map(isnan, least)):
            known = [index for index, value in enumerate(least) if value == value]
            least, most, means = ([column[index] for index in known] for column in (least, most, means))
        return Cell(min(least), sum(means) / len(means), max(most)) if least else None

    def means(self) -> Sequence[float]:
        """The mean of each row; where each was read once that is the figure itself."""
        if self.least == self.most:
            return self.least
        return [low + (high - low) * place / PLACES for low, high, place in zip(*self, strict=True)]


NOTHING = Cells(_NO_FIGURES, _NO_FIGURES, _NO_PLACES)


class Column:
    """A ring of blocks. float32 keeps 24 bits: 8 KiB of 128 GiB, 1 byte of 16 MiB; a mean lies between its bounds.

    Rows come in order of their numbers, a block at a time: `turn` begins the next one. A block that never
    changes packs to 4 bytes, one whose figures jump about to 500 where each was read once and to 1,700 where not.
    """

    __slots__ = ("_block", "_open", "_packed", "last")

    def __init__(self, rows: int, block: int) -> None:
        self.last = -1
        self._block = block
        self._open = NOTHING.between(0, BLOCK_ROWS)
        self._packed: list[bytes | None] = [None] * -(-rows // BLOCK_ROWS)

    def turn(self, block: int) -> None:
        """Pack the newest block, and begin this one."""
        self._packed[self._block % len(self._packed)] = packed(self._open)
        self._open = NOTHING.between(0, BLOCK_ROWS)
        self._block = block

    def put(self, number: int, cell: Cell | float) -> None:
        """What the series did in this row; a number is a figure that was read once."""
        if not isinstance(cell, Cell):
            self.put_run(number, array("f", (cell,)))
            return
        at = number % BLOCK_ROWS
        ring = self._open
        least, mean, most = cell
        span = most - least
        ring.least[at] = least
        ring.most[at] = most
        ring.places[at] = min(PLACES, max(0, round((mean - least) / span * PLACES))) if span > 0 else 0
        self.last = number

    def put_run(self, number: int, figures: array[float]) -> None:
        """Figures that were read once each, in rows of the newest block from this number on."""
        at = number % BLOCK_ROWS
        here = slice(at, at + len(figures))
        self._open.least[here] = self._open.most[here] = figures
        self.last = number + len(figures) - 1

    def fill(self, number: int, cells: Cells) -> None:
        """Rows of the newest block from this number on, all at once."""
        at, count = number % BLOCK_ROWS, len(cells.least)
        ring, here = self._open, slice(at, at + count)
        ring.least[here], ring.most[here], ring.places[here] = cells
        self.last = number + count - 1

    def cells(self, first: int, last: int) -> Cells:
        """The rows from number `first` up to, without, `last`; a copy."""
        begin = self._block * BLOCK_ROWS
        if first >= begin:
            return self._open.between(first - begin, last - begin)
        found = None
        for block in range(first // BLOCK_ROWS, -(-last // BLOCK_ROWS)):
            begin = block * BLOCK_ROWS
            piece = self._cells_of(block).between(max(0, first - begin), min(BLOCK_ROWS, last - begin))
            found = piece if found is None else Cells(*map(add, found, piece))
        return found or NOTHING.between(0, 0)

    def _cells_of(self, block: int) -> Cells:
        if block == self._block:
            return self._open
        kept = self._packed[block % len(self._packed)]
        return NOTHING if kept is None else unpacked(kept)


def packed(cells: Cells) -> bytes:
    """A block in few bytes: its one figure where it has no other, else what zlib makes of it.

    Bytes of the same weight lie together, and of `most` only what differs from `least`: neighbours in time have
    their upper bytes in common, and a figure that was read once is its own least and most.
    """
    least, most = cells.least.tobytes(), cells.most.tobytes()
    if least == most == least[:_FIGURE] * BLOCK_ROWS:
        return least[:_FIGURE]
    planes = _apart(least, _FIGURE) + _apart(_difference(least, most), _FIGURE) + _apart(cells.places.tobytes(), 2)
    return zlib.compress(planes, _LEVEL)


def unpacked(block: bytes) -> Cells:
    if len(block) == _FIGURE:
        figures = array("f", block) * BLOCK_ROWS
        return Cells(figures, figures, _NO_PLACES)
    planes, size = zlib.decompress(block), _FIGURE * BLOCK_ROWS
    least = _together(planes[:size], _FIGURE)
    most = _difference(least, _together(planes[size : 2 * size], _FIGURE))
    return Cells(array("f", least), array("f", most), array("H", _together(planes[2 * size :], 2)))


def _apart(raw: bytes, width: int) -> bytes:
    return b"".join(raw[place::width] for place in range(width))


def _together(planes: bytes, width: int) -> bytes:
    raw, count = bytearray(len(planes)), len(planes) // width
    for place in range(width):
        raw[place::width] = planes[place * count : (place + 1) * count]
    return bytes(raw)


def _difference(one: bytes, other: bytes) -> bytes:
    """Bit by bit; of one and the difference it makes the other."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")
