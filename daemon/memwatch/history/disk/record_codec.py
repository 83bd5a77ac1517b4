"""What the records of the rings hold."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from memwatch.events import Event
from memwatch.helper.codec import Garbled, from_line, to_line
from memwatch.history.disk.ring_file import LAST_UNIX
from memwatch.history.disk.row_codec import Unreadable, packed_rows, unpacked_rows
from memwatch.history.tier import Strip

# Kinds of records, beside `ring.MENDED`.
ROWS, TICK, STARTED, STOPPED, EVENTS = 1, 2, 3, 4, 5
# So much of events to a record: with what is around each sentence, not more than a block.
SENTENCES_BYTES, AROUND_BYTES = 3000, 100
# The next must have a number that JSON's readers take.
MOST_SEQ = 1 << 52
_LENGTH = struct.Struct("<I")


class Said(Struct, frozen=True):
    """Events, oldest first."""

    events: tuple[Event, ...]


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


def entries_of(events: Sequence[Event]) -> list[tuple[int, bytes]]:
    """Events as the payloads of records, each a line of JSON, with the number of its last event."""
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
    """The events of a record. Raises Garbled."""
    events = from_line(Said, payload).events
    if not all(0 < event.seq < MOST_SEQ and 0 <= event.unix < LAST_UNIX for event in events):
        raise Garbled(f"events that nobody can have written: {payload[:80]!r}")
    return events
