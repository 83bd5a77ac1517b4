"""What the records of the rings hold."""

from __future__ import annotations

import struct

from memwatch.store.rows import Unreadable, packed_rows, unpacked_rows
from memwatch.tier import Strip

# Kinds of records, beside `ring.MENDED`.
ROWS, TICK, STARTED, STOPPED = 1, 2, 3, 4
_LENGTH = struct.Struct("<I")


def entry_of(strip: Strip, worst: bytes = b"") -> bytes:
    """Rows, and the worst tick of their time with who held the memory then."""
    rows = packed_rows(strip)
    return _LENGTH.pack(len(rows)) + rows + worst


def rows_in(payload: bytes) -> tuple[Strip, bytes]:
    """The rows, and the packed tick if there is one. Raises Unreadable."""
    if len(payload) < _LENGTH.size:
        raise Unreadable("it ends too early")
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return unpacked_rows(payload[_LENGTH.size : end]), payload[end:]
