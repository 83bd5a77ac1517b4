"""Rows of the three tiers: how many are kept, when their slots begin, and the estimated time to read them."""

from __future__ import annotations

from array import array

import pytest

from memwatch.reporting.history.tier import RowBlock, TierSpec
from memwatch_monitor.history.tiers import History

USED = "pool.ram.used_bytes"


def times_only(end: float = 40 * 86_400.0) -> History:
    """Return a history with more rows than fit in each tier, up to `end`, and no values."""
    history = History()
    for tier, span in zip(history.tiers, (4000.0, 90_000.0, 31 * 86_400.0), strict=True):
        step = tier.spec.step_seconds
        times = [end - step * back for back in range(round(span / step), -1, -1)]
        tier.load(RowBlock(array("d", times), {}))
    return history


@pytest.mark.parametrize(("tier", "step", "hours"), [(0, 1.0, 1.0), (1, 10.0, 24.0), (2, 300.0, 30 * 24.0)])
def test_rows_are_kept_for_an_hour_a_day_and_thirty_days(tier: int, step: float, hours: float) -> None:
    """A row that is as old as its tier is long has just been replaced."""
    one = times_only().tiers[tier]

    assert one.time_of(one.first + 1) - one.time_of(one.first) == step
    assert one.end - one.time_of(one.first) == hours * 3600.0 - step


@pytest.mark.parametrize(("points", "milliseconds"), [(1, 3.0), (300, 4.0), (8640, 24.0)])
def test_estimate_of_a_query_is_near_the_measured_time(points: int, milliseconds: float) -> None:
    """Measured for the 8,640 rows of 30 days. Queries above 5 ms run in a thread."""
    history = times_only()
    seconds = history.estimate_seconds(1, history.end - 30 * 86_400.0, history.end, points)

    assert seconds == pytest.approx(milliseconds / 1000, rel=0.3)
    assert history.estimate_seconds(7, history.end - 30 * 86_400.0, history.end, points) == 7 * seconds


def test_estimate_counts_only_rows_in_the_time_of_the_query_and_their_buckets() -> None:
    history = times_only()
    week, month = (history.estimate_seconds(1, history.end - days * 86_400.0, history.end, 1) for days in (7, 30))

    most, more = (history.estimate_seconds(1, 0.0, history.end, points) for points in (4_000_000, 8_000_000))

    assert history.estimate_seconds(1, history.end, history.end, 300) == 0.0
    assert most == more
    assert week == pytest.approx(month * 7 / 30, rel=0.01)


@pytest.mark.parametrize("step", [10.0, 10.1, 0.7])
def test_reading_at_the_begin_of_a_slot_is_in_the_row_of_that_slot(step: float) -> None:
    """13 × 10.1 / 10.1 is less than 13: by the rounded quotient, the reading is in the slot before."""
    history = History((TierSpec(step / 2, 200 * step), TierSpec(step, 200 * step)))
    for number in range(100):
        history.add(number * step, {USED: 2.0 * number})
        history.add((number + 0.5) * step, {USED: 2.0 * number + 1.0})

    coarse = history.tiers[1]
    rows = coarse.series_slice(USED, coarse.first, coarse.added)

    assert list(rows.times) == [number * step for number in range(99)]
    assert list(rows.minimum) == [2.0 * number for number in range(99)]
    assert list(rows.maximum) == [2.0 * number + 1.0 for number in range(99)]


@pytest.mark.parametrize(("end", "rows"), [(19.5, 1), (20.0, 2), (20.5, 2)])
def test_row_of_a_slot_is_there_with_the_reading_at_its_end(end: float, rows: int) -> None:
    history = History((TierSpec(0.5, 100.0), TierSpec(10.0, 1000.0)))

    for number in range(round(end / 0.5) + 1):
        history.add(number * 0.5, {USED: 1.0})

    assert len(history.tiers[1]) == rows
