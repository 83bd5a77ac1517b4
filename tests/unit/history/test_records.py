"""Records of events: none is larger than a block, and a block is not wasted on a few events."""

from __future__ import annotations

from itertools import pairwise

import pytest

from memwatch.core.events import Event
from memwatch.core.helper.codec import DecodeError, to_line
from memwatch.core.snapshot_json import LAST_UNIX
from memwatch_monitor.history.records import MAX_SEQ, EventBatch, pack_events, unpack_events
from memwatch_monitor.history.ring_file import BLOCK, HEAD_BYTES

FIRST = 1_000_000


def events_of(length: int, count: int = 300) -> list[Event]:
    text = "x" * length
    return [Event(FIRST + number, 1_700_000_000.123 + number, "level", text, "ram") for number in range(count)]


@pytest.mark.parametrize("length", [0, 1, 20, 40, 100, 300, 700, 1000])
def test_record_of_events_fits_in_a_block_and_fills_it(length: int) -> None:
    """The shorter the texts, the more of the record is around them."""
    events = events_of(length)

    packed = pack_events(events)

    sizes = [len(payload) for payload in packed]
    assert max(sizes) <= BLOCK - HEAD_BYTES
    assert all(one + other > BLOCK // 2 for one, other in pairwise(sizes[:-1]))
    assert [event for payload in packed for event in unpack_events(payload)] == events


def test_event_larger_than_a_record_is_alone_in_its_own() -> None:
    events = events_of(5000, 3)

    assert [unpack_events(one)[-1].seq for one in pack_events(events)] == [FIRST, FIRST + 1, FIRST + 2]


@pytest.mark.parametrize(
    ("seq", "unix", "is_valid"),
    [
        (1, 0.0, True),
        (0, 0.0, False),
        (1, -0.001, False),
        (MAX_SEQ - 1, LAST_UNIX - 1, True),
        (MAX_SEQ, 0.0, False),
        (1, LAST_UNIX, False),
    ],
)
def test_event_with_an_impossible_number_or_time_is_rejected(seq: int, unix: float, is_valid: bool) -> None:
    payload = to_line(EventBatch((Event(seq, unix, "level", "text"),)))

    if is_valid:
        assert [event.seq for event in unpack_events(payload)] == [seq]
    else:
        with pytest.raises(DecodeError, match="impossible"):
            unpack_events(payload)
