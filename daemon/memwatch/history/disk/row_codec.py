"""Encoding of history rows, by column, so that constant series take almost no space."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from operator import le
from typing import Any

from memwatch.history.column import Cells
from memwatch.history.tier import Strip

LENGTHS = struct.Struct("<II")
MOST_UNPACKED = 16 << 20
MOST_ROWS = 4096
# Maximum distance from this boot in seconds, far beyond any valid date.
MOST_TIME = 1e12


class Unreadable(ValueError):
    """The data is not encoded rows."""


def packed_rows(strip: Strip) -> bytes:
    """Encode names and times, then minimum, maximum and mean of each series: little-endian, zlib-compressed."""
    head = json.dumps({"rows": len(strip.times), "names": list(strip.columns)}, separators=(",", ":")).encode()
    columns = b"".join(_bytes_of(ring) for cells in strip.columns.values() for ring in cells)
    return zlib.compress(LENGTHS.pack(len(head), len(columns)) + head + _bytes_of(strip.times) + columns, 6)


def unpacked_rows(data: bytes) -> Strip:
    """Decode the result of `packed_rows`. Raises Unreadable for anything else."""
    try:
        plain = zlib.decompressobj().decompress(data, MOST_UNPACKED)
        head_bytes, _ = LENGTHS.unpack_from(plain)
        head = json.loads(plain[LENGTHS.size : LENGTHS.size + head_bytes])
        rows, names = int(head["rows"]), [str(name) for name in head["names"]]
        if not 0 <= rows <= MOST_ROWS:
            raise ValueError(f"{rows} rows")
        reader = _Reader(plain, LENGTHS.size + head_bytes)
        times = reader.take(array("d"), rows)
        if not all(abs(time) < MOST_TIME for time in times) or not all(map(le, times, times[1:])):
            raise ValueError("the times are out of range or not ascending")
        columns = {name: Cells(*(reader.take(array(code), rows) for code in ("f", "f", "H"))) for name in names}
    except (zlib.error, struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    return Strip(times, columns)


class _Reader:
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


def _bytes_of(ring: array[Any]) -> bytes:
    if sys.byteorder == "big":
        ring = ring[:]
        ring.byteswap()
    return ring.tobytes()
