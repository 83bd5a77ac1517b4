"""Test the three tiers of history: a spike shows at every zoom, a gap stays a gap, and memory is bounded."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.reporting.history.tier import Aggregate, TierSpec
from memwatch_monitor.history.tiers import TIER_SPECS, Bucket, History
from support.sample_history import SERIES, full_history, jumping

USED = "pool.ram.used_bytes"
SMALL = (TierSpec(1.0, 100.0), TierSpec(10.0, 1000.0), TierSpec(300.0, 30_000.0))


def history_of(values: list[float], lengths: tuple[TierSpec, ...] = SMALL, start: float = 0.0) -> History:
    history = History(lengths)
    for second, value in enumerate(values):
        history.add(start + second, {USED: value})
    return history


def extremes(buckets: list[Bucket]) -> tuple[float, float]:
    least = [bucket.minimum for bucket in buckets if bucket.minimum is not None]
    return min(least), max(bucket.maximum for bucket in buckets if bucket.maximum is not None)


def test_finest_tier_keeps_its_length() -> None:
    """Length is bounded, order is time."""
    history = history_of([float(n) for n in range(250)])

    assert len(history) == 100
    assert history.since(USED, 0.0) == [(float(n), float(n)) for n in range(150, 250)]
    assert history.end == 249.0


@given(
    st.lists(st.integers(0, 1 << 24).map(float), min_size=1, max_size=400),
    st.integers(1, 50),
    st.floats(0, 400),
)
def test_spike_is_visible_at_every_zoom(values: list[float], points: int, start: float) -> None:
    """The greatest and the least value survive any number of buckets from any tiers."""
    history = history_of(values)

    buckets = history.query(USED, 0.0, float(len(values)), points)

    assert extremes(buckets) == (min(values), max(values))
    assert len(buckets) <= points
    times = [bucket.boottime for bucket in history.query(USED, start, float(len(values)), points)]
    assert times == sorted(times)


def test_mean_of_equal_values_is_between_its_bounds() -> None:
    """Sums are rounded: a mean below the minimum was found on a machine at rest with ten readings a second."""
    outside = []
    for count in range(1, 40):
        history = history_of([36_241_006_592.0] * count, (TierSpec(0.1, 100.0),))
        (bucket,) = history.query(USED, 0.0, float(count), 1)
        if not bucket.minimum <= bucket.average <= bucket.maximum:  # type: ignore[operator]
            outside.append(bucket)

    assert outside == []


def test_one_full_second_of_thirty_days_is_visible() -> None:
    """A month in 30 points still shows the full second, and it does not move the mean."""
    history = History()
    for step in range(30 * 8640):
        value = 9 * (1 << 30) if step == 100_000 else 1e9
        history.tiers[1].add(step * 10.0, {USED: Aggregate(1e9, 1e9, value)})
        if step % 30 == 29:
            history.add_row(step * 10.0 + 9.0, {USED: Aggregate(1e9, 1e9, 1e9)})

    buckets = history.query(USED, 0.0, 30 * 86_400.0, 30)

    assert len(buckets) == 30
    assert extremes(buckets) == (1e9, 9 * (1 << 30))
    assert [bucket.maximum for bucket in buckets].count(9 * (1 << 30)) == 1
    assert all(bucket.average == pytest.approx(1e9) for bucket in buckets)


def test_times_too_old_for_one_tier_come_from_the_next() -> None:
    """A query in fine buckets: the last 100 s by the second, and before them rows of 10 s."""
    history = history_of([float(n) for n in range(1000)])

    buckets = history.query(USED, 0.0, 999.0, 1000)

    by_second = [bucket for bucket in buckets if bucket.boottime >= 900.0]
    by_ten = [bucket for bucket in buckets if bucket.boottime < 900.0]
    assert [bucket.boottime for bucket in by_second] == [float(n) for n in range(900, 1000)]
    assert [bucket.boottime for bucket in by_ten] == [10.0 * n for n in range(90)]
    assert (by_ten[7].boottime, by_ten[7].minimum, by_ten[7].maximum) == (70.0, 70.0, 79.0)
    assert by_ten[7].average == pytest.approx(74.5, abs=1e-3)


def test_pause_is_a_gap() -> None:
    """Ten seconds without a reading are a gap in the line."""
    history = history_of([1.0] * 5)
    history.add(20.0, {USED: 2.0})

    averages = [bucket.average for bucket in history.query(USED, 0.0, 21.0, 21)]

    assert averages == [1.0, 1.0, 1.0, 1.0, 1.0, None, 2.0]


def test_unknown_value_is_not_repeated() -> None:
    """A name left out of a tick leaves a gap, and a name first seen later begins there."""
    history = History(SMALL)
    history.add(0.0, {"a": 1.0})
    history.add(1.0, {"a": 2.0, "b": 7.0})
    history.add(2.0, {"b": 8.0})

    assert history.since("a", 0.0) == [(0.0, 1.0), (1.0, 2.0)]
    assert history.since("b", 0.0) == [(1.0, 7.0), (2.0, 8.0)]
    with pytest.raises(KeyError):
        history.query("c", 0.0, 2.0, 10)


def test_old_value_does_not_return_after_a_lap() -> None:
    """A column without new values is empty after one lap of the ring."""
    history = History([TierSpec(1.0, 4.0)])
    history.add(0.0, {"a": 1.0, "b": 1.0})
    for second in range(1, 6):
        history.add(float(second), {"b": 1.0})

    assert history.since("a", 0.0) == []


def test_changed_length_keeps_the_values_that_fit() -> None:
    """A reload that changes the lengths does not empty the chart."""
    history = history_of([float(n) for n in range(10)])

    shorter = history.resized((TierSpec(1.0, 4.0), *SMALL[1:]))
    longer = history.resized(TIER_SPECS)
    shorter.add(10.0, {USED: 10.0})

    assert [value for _, value in shorter.since(USED, 0.0)] == [7.0, 8.0, 9.0, 10.0]
    assert len(longer) == 10


def test_series_that_come_and_go_are_bounded() -> None:
    """Beyond the limit, the series with the oldest value is replaced."""
    history = History(SMALL, max_series=3)
    for second in range(50):
        history.add(float(second), {USED: 1.0, f"share.mig{second}.used_bytes": 2.0})

    assert [len(tier.columns) for tier in history.tiers[:2]] == [3, 3]
    assert USED in history.names()
    assert len(history.since(USED, 0.0)) == 50


def test_values_keep_24_bits() -> None:
    """128 GiB are exact to 8 KiB; and minimum ≤ mean ≤ maximum always holds."""
    history = History(SMALL)
    values = [random.Random(second).randrange(1 << 37) for second in range(60)]
    for second, value in enumerate(values):
        history.add(float(second), {USED: float(value)})

    kept = [value for _, value in history.since(USED, 0.0)]
    (bucket,) = history.query(USED, 0.0, 60.0, 1)

    assert max(abs(one - value) for one, value in zip(kept, values, strict=True)) <= 8192
    assert bucket.minimum is not None
    assert bucket.average is not None
    assert bucket.maximum is not None
    assert bucket.minimum <= bucket.average <= bucket.maximum


def test_query_of_30_days_is_fast() -> None:
    """The slowest query of all."""
    history = full_history(jumping, end=30 * 86_400.0)

    took = min(_seconds_of(history, SERIES[0]) for _ in range(5))

    assert took <= 0.1  # measured 4 ms; this machine may be busy


def _seconds_of(history: History, name: str) -> float:
    started = time.thread_time()
    history.query(name, 0.0, 30 * 86_400.0, 300)
    return time.thread_time() - started


def test_extreme_times_do_not_hang() -> None:
    """At 1e300 s the next row begins where this one does: rolling up still advances, and ends."""
    history = history_of([1.0] * 20)
    for at in (1e299, 1e300, 1.1e300):
        history.add(at, {USED: 2.0})

    assert history.end == 1.1e300


def test_queries_in_another_thread_see_whole_rows() -> None:
    """20,000 rows are added meanwhile. The value of each row is its time, in every bucket."""
    history = History((TierSpec(1.0, 300.0), TierSpec(10.0, 3000.0)))
    history.add(0.0, {USED: 0.0})
    stop = threading.Event()
    torn: list[Bucket] = []

    def query() -> None:
        while not stop.is_set():
            buckets = history.query(USED, history.end - 200.0, history.end, 1000)
            torn.extend(one for one in buckets if one.minimum not in (None, one.boottime))

    threads = [threading.Thread(target=query) for _ in range(2)]
    for thread in threads:
        thread.start()
    for second in range(1, 20_000):
        history.add(float(second), {USED: float(second)})
    stop.set()
    for thread in threads:
        thread.join()

    assert torn == []


def test_size_and_end_in_another_thread() -> None:
    """A ring of one row is replaced 100,000 times meanwhile; a reader paused in between sees another one."""
    history = History((TierSpec(1.0, 1.0),))
    history.add(1.0, {})
    stop = threading.Event()
    seen: set[bool] = set()

    def read() -> None:
        while not stop.is_set():
            seen.add(len(history) == 1 and history.end >= 1.0)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for second in range(2, 100_000):
        history.add(float(second), {})
    stop.set()
    for thread in threads:
        thread.join()

    assert seen == {True}
