"""Limits of the pace: pause between ticks, unrest after a movement, least fall that needs a tick, thresholds."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Thresholds
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import Level, Pressure, Reason
from memwatch_monitor.pacing import (
    FORECAST_RATIO,
    FORECAST_SECONDS,
    REPORT_SECONDS,
    FallRate,
    Pacing,
    RecentHigh,
    count_above_threshold,
    remaining,
)
from support.fakes import GIB

SIZE = 64 * GIB
LEFT = 20 * GIB  # near exhaustion, and far above the next threshold
# A thousandth of the size, nearly.
MOVE = SIZE // 1024


def verdict(left: int, level: Level = Level.MEDIUM) -> Pressure:
    return Pressure("ram", level, level, 1 - left / SIZE, kind="system_ram", size_bytes=SIZE, available_bytes=left)


def pacing_at(left: int = LEFT) -> Pacing:
    """Return the pace after a tick at second 0."""
    pacing = Pacing()
    pacing.on_pressure([verdict(left)], 0.0, 1.0)
    pacing.on_tick(0.0, 0.001)
    return pacing


@pytest.mark.parametrize(
    ("tick_seconds", "interval"),
    [(0.0, 0.005), (0.0015, 0.005), (0.002, 0.006), (0.02, 0.06), (0.033, 0.099), (0.034, 0.1), (1.0, 0.1)],
)
def test_collapsing_memory_is_read_after_three_times_the_duration_of_a_tick(
    tick_seconds: float, interval: float
) -> None:
    """So ticks take a third of a CPU at most. It is 5 ms at least, and a tenth of a second at most."""
    pacing = pacing_at()
    pacing.on_pressure([verdict(GIB // 4)], 0.1, 1.0)

    pacing.on_tick(0.1, tick_seconds)

    assert pacing.interval(1.0) == pytest.approx(interval)


@pytest.mark.parametrize(("seconds", "is_restless"), [(0.0, True), (9.75, True), (10.0, False), (60.0, False)])
def test_memory_near_exhaustion_is_restless_until_ten_seconds_after_it_moved(
    seconds: float, is_restless: bool
) -> None:
    pacing = pacing_at()
    pacing.on_pressure([verdict(LEFT - GIB)], 5.0, 1.0)

    pacing.on_pressure([verdict(LEFT - GIB)], 5.0 + seconds, 1.0)

    assert pacing.is_restless is is_restless


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(("less", "is_restless"), [(1, False), (0, True), (-1, True)])
def test_memory_at_rest_is_restless_again_after_the_least_movement(
    direction: int, less: int, is_restless: bool
) -> None:
    pacing = pacing_at()
    pacing.on_pressure([verdict(LEFT)], 20.0, 1.0)
    assert not pacing.is_restless

    pacing.on_pressure([verdict(LEFT + direction * (MOVE - less))], 21.0, 1.0)

    assert pacing.is_restless is is_restless


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(("less", "is_still"), [(1, True), (0, False), (-1, False)])
def test_fall_or_rise_by_the_least_movement_needs_a_tick(direction: int, less: int, is_still: bool) -> None:
    """Some time after the last tick."""
    assert pacing_at().is_still(REPORT_SECONDS, 1.0, lambda: direction * (MOVE - less)) is is_still


@pytest.mark.parametrize(("now", "is_still"), [(0.1, True), (0.3, True), (0.35, False), (0.4, False)])
def test_movement_without_a_forecast_waits_for_the_fourth_reading(now: float, is_still: bool) -> None:
    """A program that allocates and frees all the time: ten readings a second, and two to three ticks."""
    assert pacing_at().is_still(now, 1.0, lambda: 2 * MOVE) is is_still


@pytest.mark.parametrize(("lost", "is_still"), [(FORECAST_RATIO * SIZE - 2, True), (FORECAST_RATIO * SIZE, False)])
def test_fall_that_may_be_forecast_needs_a_tick_at_once(lost: float, is_still: bool) -> None:
    """From the highest reading of the last 20 s on, in two steps: the second one alone is only a movement."""
    pacing, step = pacing_at(), 2 * MOVE
    pacing.on_pressure([verdict(LEFT - round(lost) + step)], 10.0, 1.0)
    pacing.on_tick(10.0, 0.001)

    assert pacing.is_still(10.1, 1.0, lambda: step) is is_still


def test_highest_reading_counts_for_twenty_seconds() -> None:
    pacing, step = pacing_at(), 2 * MOVE
    pacing.on_pressure([verdict(LEFT - round(FORECAST_RATIO * SIZE) + step)], FORECAST_SECONDS + 0.1, 1.0)
    pacing.on_tick(FORECAST_SECONDS + 0.1, 0.001)

    assert pacing.is_still(FORECAST_SECONDS + 0.2, 1.0, lambda: step)


@pytest.mark.parametrize(("more", "is_still"), [(-1, True), (0, False), (1, False)])
def test_fall_to_the_next_threshold_needs_a_tick(more: int, is_still: bool) -> None:
    """Less than the least movement is left above it: the level changes at the threshold."""
    above = MOVE // 4
    pacing = pacing_at(SIZE // 4 + above)
    pacing.on_pressure([verdict(SIZE // 4 + above)], 0.0, 1.0, PressureRules(Thresholds(0.5, 0.75, 0.9)))

    assert pacing.is_still(0.1, 1.0, lambda: above + more) is is_still


@pytest.mark.parametrize(
    ("usual", "now", "is_still"),
    [
        (1.0, 0.9, True),
        (1.0, 0.95, False),
        (5.0, 0.9, True),
        (5.0, 0.95, False),
        (0.5, 0.4, True),
        (0.5, 0.45, False),
    ],
)
def test_memory_that_does_not_move_gets_a_tick_each_second(usual: float, now: float, is_still: bool) -> None:
    """Or as often as usual, if that is more often. It is due at the check that is nearest to it."""
    assert pacing_at().is_still(now, usual, lambda: 0) is is_still


@pytest.mark.parametrize(("signal", "is_still"), [("util", True), ("psi", False)])
@pytest.mark.parametrize("seconds_to_full", [Absent.NOT_AVAILABLE, 30.0])
def test_any_signal_but_use_gets_a_tick_at_each_check(
    signal: str, is_still: bool, seconds_to_full: float | Absent
) -> None:
    """Tasks that stall, or a forecast: what they say changes without a movement of memory."""
    pacing, one = pacing_at(), replace(verdict(LEFT), reasons=(Reason(signal, "text"),))
    pacing.on_pressure([replace(one, seconds_to_full=seconds_to_full)], 0.0, 1.0)

    found = pacing.is_still(0.1, 1.0, lambda: 0)

    assert found is (is_still and isinstance(seconds_to_full, Absent))


def test_failed_tick_is_repeated_at_the_next_check() -> None:
    pacing = pacing_at()
    pacing.ticked_at = None

    assert not pacing.is_still(0.1, 1.0, lambda: 0)


@pytest.mark.parametrize(
    ("ratio", "level", "critical", "left"),
    [
        (0.75, Level.MEDIUM, 0.95, 0.05),
        (0.7999, Level.MEDIUM, 0.95, 0.0001),
        (0.8, Level.MEDIUM, 0.95, 0.0),  # until the tick after it
        (0.85, Level.MEDIUM, 0.95, 0.0),
        (0.85, Level.HIGH, 0.95, 0.10),
        (0.95, Level.HIGH, 0.95, 0.0),
        (0.96, Level.HIGH, 0.95, 0.0),
        (0.97, Level.HIGH, 1.0, 0.03),
        (1.0, Level.HIGH, 1.0, 0.0),  # full, and critical only above 100 %
        (0.97, Level.CRITICAL, 0.95, math.inf),
        (1.0, Level.CRITICAL, 1.0, math.inf),
    ],
)
def test_memory_above_the_next_threshold(ratio: float, level: Level, critical: float, left: float) -> None:
    """As a part of the size; nothing at the threshold and beyond it."""
    one = Pressure("ram", level, level, ratio)
    rules = PressureRules(Thresholds(0.6, 0.8, critical))

    found = count_above_threshold(one, round((1 - ratio) * SIZE), rules)

    assert found / SIZE == pytest.approx(left, abs=1e-9)


@pytest.mark.parametrize(
    ("pause", "counted"), [(0.0, 0.005), (0.001, 0.005), (0.005, 0.005), (0.05, 0.05), (3.0, 0.1)]
)
def test_fall_counts_as_one_of_5_to_100_milliseconds(pause: float, counted: float) -> None:
    """A tick may follow a probe at once: what fell between the two is no fall of a second."""
    rate = FallRate()
    rate.update(10.0, remaining(LEFT, MOVE))

    seconds = rate.update(10.0 + pause, remaining(LEFT - GIB, MOVE))

    assert seconds == pytest.approx(remaining(LEFT - GIB, MOVE).margin_bytes / (GIB / counted))


def test_forecast_may_come_with_the_least_fall_of_any_target() -> None:
    """A cgroup of 8 GiB gets one after a smaller loss than System RAM of 64 GiB, and what both have lost counts."""
    highs = RecentHigh()
    large, small = FORECAST_RATIO * SIZE, FORECAST_RATIO * SIZE / 8

    calm = highs.update(0.0, {"ram": remaining(LEFT, MOVE), "job": remaining(GIB, MOVE / 8)})
    fallen = highs.update(1.0, {"ram": remaining(LEFT - int(large) + 1000, MOVE), "job": remaining(GIB, MOVE / 8)})
    over = highs.update(2.0, {"ram": remaining(LEFT - int(large) - 1000, MOVE), "job": remaining(GIB, MOVE / 8)})

    assert calm == pytest.approx(small, rel=1e-3)
    assert fallen == pytest.approx(1000, abs=2)
    assert over == 0.0
    assert highs.update(3.0, {}) == 0.0


def test_rest_is_as_short_as_the_target_with_the_least_memory_needs() -> None:
    """System RAM with 20 GiB left of 64, beside a cgroup with a quarter of a GiB left."""
    states = {"ram": remaining(LEFT, MOVE), "job": remaining(GIB // 4, MOVE / 8)}
    alone = [Pacing()._find_rest({name: one}, math.inf) for name, one in states.items()]

    assert Pacing()._find_rest(states, math.inf) == min(alone) < max(alone)
