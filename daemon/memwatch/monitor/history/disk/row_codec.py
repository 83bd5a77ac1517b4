"""Encoding of history rows, by column, so that constant series take almost no space."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from operator import le
from typing import Any

from memwatch.monitor.history.column import Aggregates
from memwatch.monitor.history.tier import RowBlock

LENGTHS = struct.Struct("<II")
MAX_UNPACKED_BYTES = 16 << 20
MAX_ROWS = 4096
# Maximum distance from this boot in seconds, far beyond any valid date.
MAX_TIME = 1e12


class RowDecodeError(ValueError):
    """The data is not encoded rows."""


def pack_rows(row_block: RowBlock) -> bytes:
    """Encode names and times, then minimum, maximum and mean of each series: little-endian, zlib-compressed."""
    head = json.dumps(
        {"rows": len(row_block.times), "names": list(row_block.columns)}, separators=(",", ":")
    ).encode()
    columns = b"".join(_to_bytes(ring) for aggregates in row_block.columns.values() for ring in aggregates)
    return zlib.compress(LENGTHS.pack(len(head), len(columns)) + head + _to_bytes(row_block.times) + columns, 6)


def unpack_rows(data: bytes) -> RowBlock:
    """Decode the result of `pack_rows`. Raises Unreadable for anything else."""
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
        raise RowDecodeError(str(error)) from None
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
