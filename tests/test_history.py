"""The ring remembers the last hour exactly, hides no spike and bridges no gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memwatch.history import History


def ring_of(values: list[float], capacity: int = 100, start: float = 0.0) -> History:
    ring = History(capacity, 1.0)
    for second, value in enumerate(values):
        ring.add(start + second, {"pool.ram.used_bytes": value})
    return ring


def test_the_oldest_goes_when_the_ring_is_full() -> None:
    """Length is bounded, order is time."""
    ring = ring_of([float(n) for n in range(250)])

    assert len(ring) == 100
    assert ring.since("pool.ram.used_bytes", 0.0) == [(float(n), float(n)) for n in range(150, 250)]
    assert ring.end == 249.0


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=300), st.integers(1, 50))
def test_a_spike_is_visible_at_every_zoom(values: list[float], points: int) -> None:
    """Whatever the number of buckets, the greatest and the least value are in them."""
    ring = ring_of(values, capacity=400)

    buckets = ring.query("pool.ram.used_bytes", 0.0, float(len(values)), points)

    assert max(bucket.maximum for bucket in buckets if bucket.maximum is not None) == max(values)
    assert min(bucket.minimum for bucket in buckets if bucket.minimum is not None) == min(values)
    assert len(buckets) <= points + 1


def test_a_pause_is_a_gap() -> None:
    """Ten seconds without a reading show as a hole in the line."""
    ring = ring_of([1.0] * 5)
    ring.add(20.0, {"pool.ram.used_bytes": 2.0})

    averages = [bucket.average for bucket in ring.query("pool.ram.used_bytes", 0.0, 21.0, 21)]

    assert averages == [1.0, 1.0, 1.0, 1.0, 1.0, None, 2.0]


def test_a_figure_that_is_not_known_is_not_repeated() -> None:
    """A name left out of a tick leaves a hole, and a name seen late begins late."""
    ring = History(10, 1.0)
    ring.add(0.0, {"a": 1.0})
    ring.add(1.0, {"a": 2.0, "b": 7.0})
    ring.add(2.0, {"b": 8.0})

    assert ring.since("a", 0.0) == [(0.0, 1.0), (1.0, 2.0)]
    assert ring.since("b", 0.0) == [(1.0, 7.0), (2.0, 8.0)]


def test_an_old_value_does_not_come_back_after_a_lap() -> None:
    """A column that is no longer fed is empty when the ring has gone round once."""
    ring = History(4, 1.0)
    ring.add(0.0, {"a": 1.0, "b": 1.0})
    for second in range(1, 6):
        ring.add(float(second), {"b": 1.0})

    assert ring.since("a", 0.0) == []


def test_another_size_keeps_the_past_that_fits() -> None:
    """A reload that changes the interval does not empty the chart."""
    ring = ring_of([float(n) for n in range(10)])

    smaller, larger = ring.resized(4, 2.0), ring.resized(1000, 1.0)

    assert [value for _, value in smaller.since("pool.ram.used_bytes", 0.0)] == [6.0, 7.0, 8.0, 9.0]
    assert len(larger) == 10
