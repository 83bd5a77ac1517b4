"""Encoding of the ring files' records."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from memwatch.core.events import Event
from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.monitor.history.disk.ring_file import LAST_UNIX
from memwatch.monitor.history.disk.row_codec import RowDecodeError, pack_rows, unpack_rows
from memwatch.monitor.history.tier import RowBlock

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
    """Decode rows, and return the encoded tick, if any. Raises Unreadable."""
    if len(payload) < _LENGTH.size:
        raise RowDecodeError("the data is truncated")
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return unpack_rows(payload[_LENGTH.size : end]), payload[end:]


def pack_events(events: Sequence[Event]) -> list[tuple[int, bytes]]:
    """Encode events as payloads of records, each a line of JSON. Return (number of the last event, payload)."""
    return [(some[-1].seq, to_line(EventBatch(tuple(some)))) for some in _by_the_block(events)]


def _by_the_block(events: Iterable[Event]) -> Iterator[list[Event]]:
    some: list[Event] = []
    room = SENTENCES_BYTES
    for event in events:
        weight = len(event.text) + AROUND_BYTES
        if some and weight > room:
            yield some
            some, room = [], SENTENCES_BYTES
        some.append(event)
        room -= weight
    if some:
        yield some


def unpack_events(payload: bytes) -> tuple[Event, ...]:
    """Decode the events of a record. Raises Garbled."""
    events = from_line(EventBatch, payload).events
    if not all(0 < event.seq < MAX_SEQ and 0 <= event.unix < LAST_UNIX for event in events):
        raise DecodeError(f"events with impossible numbers or times: {payload[:80]!r}")
    return events
