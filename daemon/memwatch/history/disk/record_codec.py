"""Encoding of the ring files' records."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from memwatch.events import Event
from memwatch.helper.codec import Garbled, from_line, to_line
from memwatch.history.disk.ring_file import LAST_UNIX
from memwatch.history.disk.row_codec import Unreadable, packed_rows, unpacked_rows
from memwatch.history.tier import Strip

# Kinds of records, in addition to `ring_file.MENDED`.
ROWS, TICK, STARTED, STOPPED, EVENTS = 1, 2, 3, 4, 5
# Maximum size of events in a record. With the overhead per event, a record fits in a block.
SENTENCES_BYTES, AROUND_BYTES = 3000, 100
# The next number must be an integer that all JSON parsers represent exactly.
MOST_SEQ = 1 << 52
_LENGTH = struct.Struct("<I")


class Said(Struct, frozen=True):
    """Events, oldest first."""

    events: tuple[Event, ...]


def entry_of(strip: Strip, worst: bytes = b"") -> bytes:
    """Encode rows, and the worst tick in their time with the processes that held the memory."""
    rows = packed_rows(strip)
    return _LENGTH.pack(len(rows)) + rows + worst


def rows_in(payload: bytes) -> tuple[Strip, bytes]:
    """Decode rows, and return the encoded tick, if any. Raises Unreadable."""
    if len(payload) < _LENGTH.size:
        raise Unreadable("the data is truncated")
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return unpacked_rows(payload[_LENGTH.size : end]), payload[end:]


def entries_of(events: Sequence[Event]) -> list[tuple[int, bytes]]:
    """Encode events as payloads of records, each a line of JSON. Return (number of the last event, payload)."""
    return [(some[-1].seq, to_line(Said(tuple(some)))) for some in _by_the_block(events)]


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


def events_in(payload: bytes) -> tuple[Event, ...]:
    """Decode the events of a record. Raises Garbled."""
    events = from_line(Said, payload).events
    if not all(0 < event.seq < MOST_SEQ and 0 <= event.unix < LAST_UNIX for event in events):
        raise Garbled(f"events with impossible numbers or times: {payload[:80]!r}")
    return events
