"""Test the trend of available memory: gaps, the shortest fall that counts, and the forecast of each horizon."""

from __future__ import annotations

import pytest

from memwatch.core.pressure.forecast import (
    FAR,
    FAST,
    NEAR,
    NO_FALL,
    Fall,
    Horizon,
    Past,
    Point,
    Slope,
    Trend,
    find_fall,
    slower_pace,
)
from support.fakes import GIB

SIZE = 64 * GIB


def fall(seconds: float, start: float = 0.0, available: int = 24 * GIB, pace: int = GIB) -> Trend:
    """Return the trend of memory that falls by `pace` in each second and is read once a second."""
    trend = Trend()
    for second in range(int(seconds) + 1):
        trend = trend.with_point(start + second, available - second * pace, SIZE)
    return trend


@pytest.mark.parametrize(("gap", "is_known"), [(6.0, True), (6.5, False)])
def test_gap_without_a_reading_ends_the_trend(gap: float, is_known: bool) -> None:
    """Memory that was not read may have moved for other reasons: the next trend needs five seconds of readings."""
    trend = fall(8)
    for second in range(5):
        at = 8 + gap + second
        trend = trend.with_point(at, 24 * GIB - int(at * GIB), SIZE)

    assert fall(8).forecast(SIZE) is not None
    assert (trend.forecast(SIZE) is not None) is is_known
    assert [slope.points[0].at for slope in (trend.near, trend.far)] == [0.0 if is_known else 8 + gap] * 2


@pytest.mark.parametrize("interval", [0.1, 1.0])
@pytest.mark.parametrize("missing", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
def test_fall_goes_on_over_missing_readings(interval: float, missing: float) -> None:
    """A machine that is almost full reads late, and its forecast is needed most."""
    times = [round(number * interval, 1) for number in range(int(20 / interval) + 1)]
    trend = Trend()
    for at in times:
        if not 20 - missing - 0.05 < at < 20:
            trend = trend.with_point(at, 24 * GIB - int(at * GIB), SIZE, is_fast=True)

    forecast = trend.forecast(SIZE)

    assert forecast is not None
    assert (round(forecast.seconds, 2), forecast.is_stated, forecast.is_lasting) == (4.0, True, True)


@pytest.mark.parametrize("interval", [0.1, 1.0])
@pytest.mark.parametrize("later", [0.0, 1.0, 2.0, 3.0])
def test_single_allocation_during_missing_readings_is_no_lasting_fall(interval: float, later: float) -> None:
    """Its memory is gone at the first reading after them, and nothing falls from then on."""
    trend = Trend()
    times = [round(number * interval, 1) for number in range(int(20 / interval) + 1)]
    for at in (*times, *(round(24 + number * interval, 1) for number in range(int(later / interval) + 1))):
        trend = trend.with_point(at, (24 if at <= 20 else 4) * GIB, SIZE, is_fast=True)

    forecast = trend.forecast(SIZE)

    assert forecast is None or not forecast.is_lasting


PACE = 1024
STEP_SECONDS = 0.0625


def line(seconds: float, available: int, pace: int = PACE) -> tuple[Point, ...]:
    """Return the readings of a steady fall that ends at time 0 with `available` bytes."""
    times = [-step * STEP_SECONDS for step in range(int(seconds / STEP_SECONDS), -1, -1)]
    return tuple(Point(at, available - int(at * pace)) for at in times)


def slope(horizon: Horizon, points: tuple[Point, ...], fall: Fall = NO_FALL) -> Slope:
    return Slope(horizon, points, fall, points[0].available)


@pytest.mark.parametrize(
    ("fast_pace", "expected"),
    [(PACE, PACE), (PACE * 5 // 4 - 1, PACE), (PACE * 5 // 4, PACE * 5 // 4), (4 * PACE, 4 * PACE)],
)
def test_fall_that_became_a_quarter_faster_is_forecast_by_its_last_seconds(fast_pace: int, expected: int) -> None:
    """A smaller difference is noise: the longer time span has seen more of the same fall."""
    points = line(4, 10_000)
    fast, near = slope(FAST, points, Fall(fast_pace, 3.0)), slope(NEAR, points, Fall(PACE, 20.0))

    forecast = Trend(fast, near).forecast(100_000)

    assert forecast is not None
    assert forecast.seconds == 10_000 / expected
    assert forecast.fell_seconds == (20.0 if expected == PACE else 3.0)


@pytest.mark.parametrize(("lost", "is_known"), [(0, False), (63, False), (64, True), (65, True)])
def test_fall_has_stopped_below_a_quarter_of_its_pace(lost: int, is_known: bool) -> None:
    """A quarter of a second at a quarter of 1,024 bytes per second are 64 bytes."""
    near = slope(NEAR, line(4, 10_000), Fall(PACE, 20.0))
    latest = tuple(Point(at, 10_000 + change) for at, change in ((-0.25, lost), (-0.125, lost // 2), (0.0, 0)))

    assert (Trend(slope(FAST, latest), near).forecast(100_000) is not None) is is_known
    assert Trend(slope(FAST, latest[1:]), near).forecast(100_000) is not None  # two readings show no end


@pytest.mark.parametrize(
    ("available", "size", "is_stated"),
    [
        (30 * PACE, 300 * PACE - 1, False),
        (30 * PACE, 300 * PACE, True),
        (60 * PACE - 1, 300 * PACE, False),
        (60 * PACE, 300 * PACE, True),
        (60 * PACE, 300 * PACE - 1, False),
        (300 * PACE - 1, 1500 * PACE, True),
        (300 * PACE, 1500 * PACE, False),
        (300 * PACE, 2000 * PACE, True),
        (300 * PACE, 2000 * PACE - 1, False),
    ],
)
def test_forecast_is_stated_from_a_use_on(available: int, size: int, is_stated: bool) -> None:
    """90 % used below a minute, 80 % below five, 85 % above: most loads, builds and caches stop before."""
    trend = Trend(near=slope(NEAR, line(20, available)), far=Slope(FAR, (), Fall(PACE, 300.0)))

    forecast = trend.forecast(size)

    assert forecast is not None
    assert forecast.seconds == available / PACE
    assert forecast.is_stated is is_stated


@pytest.mark.parametrize(("far_pace", "is_known"), [(2 * PACE - 1, True), (2 * PACE, True), (2 * PACE + 1, False)])
def test_slow_fall_counts_while_the_last_seconds_fall_half_as_fast(far_pace: int, is_known: bool) -> None:
    """After a fall stops, its slope over five minutes stays negative for a while."""
    points = line(20, 10_000)
    trend = Trend(near=slope(NEAR, points), far=Slope(FAR, (), Fall(far_pace, 300.0)))

    assert slower_pace(points, NEAR) == PACE
    assert (trend.forecast(100_000) is not None) is is_known


@pytest.mark.parametrize(("first", "is_known"), [(-0.3, False), (-0.31, True)])
def test_end_of_a_fall_shows_in_the_readings_of_two_steps(first: float, is_known: bool) -> None:
    """Of 0.15 s each. Two readings are too few."""
    near = slope(NEAR, line(4, 10_000), Fall(PACE, 20.0))
    flat = tuple(Point(at, 10_000) for at in (first, -0.15, 0.0))

    assert (Trend(slope(FAST, flat), near).forecast(100_000) is not None) is is_known


@pytest.mark.parametrize(
    ("steps", "is_stated", "is_lasting"), [(1, False, False), (2, False, True), (3, True, True)]
)
def test_fall_lasts_from_its_second_step_and_is_stated_from_its_third(
    steps: int, is_stated: bool, is_lasting: bool
) -> None:
    """Steps of 1.2 s. A single large allocation is one."""
    falling = line(steps * 1.2, 1000)
    flat = tuple(Point(falling[0].at - 5 + at, falling[0].available) for at in range(5))

    forecast = Trend(near=slope(NEAR, (*flat, *falling), Fall(PACE, 4.0))).forecast(100_000)

    assert forecast is not None
    assert (forecast.is_stated, forecast.is_lasting) == (is_stated, is_lasting)


def test_fall_that_has_paused_has_no_forecast() -> None:
    """No step of it falls now."""
    points = (*line(4, 10_000), Point(1.2, 10_000), Point(2.4, 10_000))

    assert Trend(near=slope(NEAR, points, Fall(PACE, 6.0))).forecast(100_000) is None


@pytest.mark.parametrize(
    ("available", "fell", "far_seconds", "is_stated"),
    [
        (65 * PACE, 15.0, 100.0, True),
        (65 * PACE + 1, 15.0, 100.0, False),
        (65 * PACE, 14.9, 100.0, False),
        (65 * PACE, 15.0, 99.0, False),
        (65 * PACE, 100.0, 0.0, True),
    ],
)
def test_fall_lasts_for_two_thirds_of_the_time_so_far(
    available: int, fell: float, far_seconds: float, is_stated: bool
) -> None:
    """0.65 of it. One of 15 s may have begun before the readings that show it."""
    near = slope(NEAR, line(4, available), Fall(PACE, fell))

    forecast = Trend(near=near, far=Slope(FAR, (), Fall(0.0, far_seconds))).forecast(1 << 20)

    assert forecast is not None
    assert forecast.is_stated is is_stated


@pytest.mark.parametrize(("available", "is_stated"), [(600 * PACE, True), (600 * PACE + 1, False)])
def test_leak_lasts_for_six_times_the_time_so_far(available: int, is_stated: bool) -> None:
    """It has been steady for minutes."""
    trend = Trend(near=slope(NEAR, line(20, available)), far=Slope(FAR, (), Fall(PACE, 100.0)))

    forecast = trend.forecast(1 << 23)

    assert forecast is not None
    assert forecast.is_stated is is_stated


def drive(trend: Trend, size: int, *points: tuple[float, int]) -> Trend:
    """Return the trend after lines from point to point (time, available bytes), at ten readings a second."""
    (before, available), *rest = points
    for at, level in rest:
        steps = round((at - before) * 10)
        for step in range(1, steps + 1):
            part = step / steps
            left = round(available + part * (level - available))
            trend = trend.with_point(before + part * (at - before), left, size)
        before, available = at, level
    return trend


@pytest.mark.parametrize(("lowest", "is_stated"), [(1499, False), (1500, False), (1501, True)])
def test_fall_to_where_memory_came_back_is_not_forecast(lowest: int, is_stated: bool) -> None:
    """A save that copies memory every few minutes: 85 % used again is no news. 10,000 units are all there is."""
    trend = drive(Trend(), 10_000, (0, 2500), (60, lowest), (70, 2500), (140, 2500), (300, 1500))
    forecast = trend.forecast(10_000)

    assert forecast is not None
    assert forecast.is_stated is is_stated


def test_memory_that_came_back_an_hour_ago_is_forgotten() -> None:
    past = Past().with_point(0.0, 100, 1000).with_point(10.0, 200, 1000)

    assert past.has_been(100, 3610.0)
    assert not past.has_been(99, 3610.0)
    assert not past.has_been(100, 3610.1)
    assert not Past().has_been(0, 0.0)


@pytest.mark.parametrize(("risen", "is_known"), [(129, False), (130, True)])
def test_memory_came_back_from_three_percent_on(risen: int, is_known: bool) -> None:
    past = Past().with_point(0.0, 100, 1000).with_point(1.0, risen, 1000)

    assert past.has_been(100, 2.0) is is_known


def test_least_of_several_falls_counts() -> None:
    past = Past()
    for at, available in enumerate((100, 200, 50, 150, 120, 300)):
        past = past.with_point(float(at), available, 1000)

    assert (past.came_back, past.at) == (50, 3.0)


@pytest.mark.parametrize(("level", "seconds"), [(95, 20.0), (94, 30.0)])
def test_fall_begins_after_a_twentieth_of_it(level: int, seconds: float) -> None:
    """Of 100 units: what was lost slowly before does not make the fall longer."""
    points = [Point(at, available) for at, available in ((0.0, 100), (10.0, level), (20.0, 50), (30.0, 0))]

    assert find_fall(points, NEAR, 100, 100).seconds == seconds


@pytest.mark.parametrize(("available", "is_stated"), [(600, False), (599, True)])
def test_fall_to_where_memory_came_back_is_stated_in_the_last_minute(available: int, is_stated: bool) -> None:
    """By 10 of 10,000 units a second, after 500 were available and 1000 again."""
    points = tuple(Point(float(at), available - 10 * at) for at in range(-300, 1))
    near = Slope(NEAR, points[-20:], Fall(10.0, 20.0), points[-20].available)
    past = Past().with_point(-400.0, 500, 10_000).with_point(-350.0, 1000, 10_000)
    trend = Trend(near=near, far=Slope(FAR, points, Fall(10.0, 300.0)), past=past, seen_at=0.0)
    forecast = trend.forecast(10_000)

    assert forecast is not None
    assert forecast.seconds == available / 10
    assert forecast.is_stated is is_stated
