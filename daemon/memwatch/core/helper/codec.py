"""Encode records as one line of JSON, and decode them: the protocol of helper processes, and records on disk.

Reader and writer may be of different versions: a file outlives an upgrade, and a helper process that starts after
an upgrade is newer than its daemon. Unknown fields are ignored, and a missing field gets its default. Pickle is not
used: decoding a line must not execute code.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar, cast

from memwatch.core.wire import Wire, in_place

R = TypeVar("R")
# A compressed record has 2 to 30 kB. More than this is none.
MAX_UNPACKED_BYTES = 1 << 20
# A helper process sends integers as its library returned them.
LINES: Wire = Wire(too_many=math.inf)


class DecodeError(ValueError):
    """The line is not a record of the expected type."""


def to_line(record: Any) -> bytes:  # noqa: ANN401  any record type
    """Encode a record as a line. Absent values become {"absent": reason}."""
    return json.dumps(record, default=in_place, separators=(",", ":")).encode() + b"\n"


class LineEncoder:
    """`to_line` with a cache of the last line, for records that rarely change: a repetition costs a comparison."""

    def __init__(self) -> None:
        self._last: tuple[Any, bytes] = None, b""

    def encode(self, record: Any) -> bytes:  # noqa: ANN401  any record type
        """Encode a record. Its parts must not be modified later."""
        last, line = self._last
        if last != record:
            line = to_line(record)
            self._last = record, line
        return line


def from_line(kind: type[R], line: bytes) -> R:
    """Decode a line, with its texts made printable.

    Raises `DecodeError` for other content, also if a field without a default is missing.
    """
    try:
        return cast(R, LINES.decode(kind, json.loads(line)))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise DecodeError(f"not a {kind.__name__}: {line[:80]!r} ({error})") from None


def to_packed(record: Any, level: int) -> bytes:  # noqa: ANN401  any record type
    """Encode a record as compressed bytes. `level`: that of zlib, 1 (fast) to 9 (small)."""
    import zlib  # helper processes compress nothing

    return zlib.compress(to_line(record), level)


def from_packed(kind: type[R], data: bytes) -> R:
    """Decode the result of `to_packed`. Raises `DecodeError` for anything else."""
    import zlib

    try:
        line = zlib.decompressobj().decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise DecodeError(f"not a {kind.__name__}: {error}") from None
    return from_line(kind, line)
