"""Test that ticks stay on their grid, and that clock jumps and suspends are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.clock import Moment
from memwatch.core.model import Absent
from memwatch.core.reading.schedule import Due, Pace, next_due, next_pace, suspended_seconds, wall_jump_seconds
from memwatch.core.snapshot import Level, Pressure


def test_grid_does_not_drift() -> None:
    """A tick that took a third of its interval does not delay the next one."""
    assert next_due(10.0, 1.0, 10.3) == Due(11.0, 0)


def test_long_pause_causes_no_burst_of_ticks() -> None:
    """After five missed ticks comes one tick, not five, and it is on the grid."""
    due = next_due(10.0, 1.0, 15.5)

    assert due.at == pytest.approx(16.0)
    assert due.missed == 5


@given(st.floats(0, 1e6), st.floats(0.1, 60), st.floats(0, 1e5))
def test_next_tick_is_at_most_one_interval_away(due: float, interval: float, late: float) -> None:
    """This holds for any delay of the loop."""
    now = due + late

    following = next_due(due, interval, now)

    assert following.at >= now - 1e-6
    assert following.at - now <= interval + 1e-3


@pytest.mark.parametrize(
    ("wall", "boottime", "suspended", "jump"), [(3701.0, 3611.0, 3600.0, 0.0), (172_901.0, 11.0, 0.0, 172_800.0)]
)
def test_suspend_is_the_difference_between_two_clocks_and_a_set_clock_is_none(
    wall: float, boottime: float, suspended: float, jump: float
) -> None:
    """Boot time advanced by one hour, monotonic time by one second. Then two days forward in one tick."""
    before, after = Moment(10.0, 10.0, 100.0), Moment(11.0, boottime, wall)

    assert suspended_seconds(before, after) == suspended
    assert wall_jump_seconds(before, after) == jump


def pressure(ratio: float, kind: str = "system_ram", seconds: float | None = None) -> Pressure:
    left = Absent.NOT_AVAILABLE if seconds is None else seconds
    return Pressure("x", Level.LOW, Level.LOW, ratio, seconds_to_full=left, kind=kind)


@pytest.mark.parametrize(
    ("found", "interval"),
    [
        (pressure(0.59), 1.0),
        (pressure(0.60), 0.1),
        (pressure(0.30, seconds=59.0), 0.1),
        (pressure(0.30, seconds=61.0), 1.0),
        (pressure(0.99, kind="vram"), 1.0),
        (pressure(0.60, kind="cgroup"), 0.1),
        (pressure(0.60, kind="gtt"), 0.1),
    ],
)
def test_interval_is_shorter_under_pressure(found: Pressure, interval: float) -> None:
    """From 60 % of shared memory, or one minute before full; a GPU's own memory is read once a second."""
    assert next_pace(Pace(), [found], 0.0).interval(1.0) == interval


def test_shorter_interval_is_kept_under_pressure() -> None:
    """An interval shorter than the fast one is not changed."""
    assert Pace(fast=True).interval(0.05) == 0.05


def test_pace_slows_down_after_thirty_calm_seconds() -> None:
    """Thirty seconds below 57 %: not at the first dip, and not at 58 %."""
    pace = next_pace(Pace(), [pressure(0.7)], 0.0)
    dipped = next_pace(pace, [pressure(0.5)], 10.0)
    above = next_pace(dipped, [pressure(0.58)], 20.0)
    calm = next_pace(above, [pressure(0.5)], 30.0)

    assert dipped.fast
    assert (above.fast, above.calm_since) == (True, None)
    assert next_pace(calm, [pressure(0.5)], 59.0).fast
    assert not next_pace(calm, [pressure(0.5)], 60.0).fast


def test_psi_trigger_makes_the_pace_fast() -> None:
    """The kernel's PSI trigger counts at any use."""
    assert next_pace(Pace(), [pressure(0.1)], 0.0, stalled=True).fast


@pytest.mark.parametrize(
    ("found", "stalled", "why"),
    [
        ([pressure(0.2), pressure(0.61)], False, "x is 61% used"),
        ([pressure(0.3, seconds=20.0)], False, "x will be full within 60 s"),
        ([pressure(0.3)], True, "tasks stall on memory (PSI)"),
    ],
)
def test_fast_pace_keeps_its_reason(found: list[Pressure], stalled: bool, why: str) -> None:
    """The reason stays for as long as the pace is fast."""
    pace = next_pace(Pace(), found, 0.0, stalled)

    assert pace.why == why
    assert next_pace(next_pace(pace, [pressure(0.1)], 1.0), [pressure(0.7)], 2.0).why == why


@pytest.mark.parametrize(("slept", "reported"), [(0.0, 0.0), (0.75, 0.0), (1.0, 1.0), (1.25, 1.25), (9.0, 9.0)])
def test_suspend_is_reported_from_one_second_on(slept: float, reported: float) -> None:
    """Clocks are read one after the other, so they differ by less. A short suspend is one."""
    before, after = Moment(10.0, 10.0, 100.0), Moment(11.0, 11.0 + slept, 101.0 + slept)

    assert suspended_seconds(before, after) == reported


@pytest.mark.parametrize(
    ("step", "reported"), [(0.5, 0.0), (0.75, 0.0), (-0.75, 0.0), (1.0, 1.0), (-1.0, -1.0), (1.25, 1.25)]
)
def test_step_of_the_wall_clock_is_reported_from_one_second_on(step: float, reported: float) -> None:
    """In both directions. NTP adjusts half a second any day."""
    assert wall_jump_seconds(Moment(0.0, 0.0, 0.0), Moment(1.0, 1.0, 1.0 + step)) == reported
