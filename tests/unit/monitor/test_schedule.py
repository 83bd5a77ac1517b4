"""Ticks stay on their grid, and clocks that jump are seen for what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.clock import Moment
from memwatch.model import Absent
from memwatch.monitor.schedule import Due, Pace, next_due, paced, suspended_seconds, wall_jump_seconds
from memwatch.snapshot import Level, Pressure


def test_the_grid_does_not_drift() -> None:
    """A tick that took a third of its interval delays the next one by nothing."""
    assert next_due(10.0, 1.0, 10.3) == Due(11.0, 0)


def test_a_long_pause_is_not_caught_up_with() -> None:
    """After five missed ticks comes one, not five, and it is on the grid."""
    due = next_due(10.0, 1.0, 15.5)

    assert due.at == pytest.approx(16.0)
    assert due.missed == 5


@given(st.floats(0, 1e6), st.floats(0.1, 60), st.floats(0, 1e5))
def test_the_next_tick_is_in_the_future_and_near(due: float, interval: float, late: float) -> None:
    """However late the loop is, the next tick is at most one interval away."""
    now = due + late

    following = next_due(due, interval, now)

    assert following.at >= now - 1e-6
    assert following.at - now <= interval + 1e-3


def test_suspend_is_the_difference_between_two_clocks() -> None:
    """Boot time went on for an hour, monotonic time for a second: the machine slept."""
    before, after = Moment(10.0, 10.0, 100.0), Moment(11.0, 3611.0, 3701.0)

    assert suspended_seconds(before, after) == 3600.0
    assert wall_jump_seconds(before, after) == 0.0


def test_a_set_clock_is_not_a_suspend() -> None:
    """Two days forward in one tick is somebody with a clock, not a long night."""
    before, after = Moment(10.0, 10.0, 100.0), Moment(11.0, 11.0, 101.0 + 172800)

    assert suspended_seconds(before, after) == 0.0
    assert wall_jump_seconds(before, after) == 172800.0


def test_ntp_at_work_is_not_worth_a_word() -> None:
    """Half a second is adjusted every day."""
    assert wall_jump_seconds(Moment(0.0, 0.0, 0.0), Moment(1.0, 1.0, 1.5)) == 0.0


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
def test_the_closer_to_the_edge_the_faster_the_look(found: Pressure, interval: float) -> None:
    """From 60 % of what programs share, or a minute before the end; a GPU's own memory is read once a second."""
    assert paced(Pace(), [found], 0.0).interval(1.0) == interval


def test_who_wants_it_faster_gets_it_faster() -> None:
    """An interval shorter than the fast one stays as it is."""
    assert Pace(fast=True).interval(0.05) == 0.05


def test_it_slows_down_once_it_has_been_calm() -> None:
    """Thirty seconds below 57 %: not at the first dip, nor at 58 %."""
    pace = paced(Pace(), [pressure(0.7)], 0.0)
    dipped = paced(pace, [pressure(0.5)], 10.0)
    above = paced(dipped, [pressure(0.58)], 20.0)
    calm = paced(above, [pressure(0.5)], 30.0)

    assert dipped.fast
    assert (above.fast, above.calm_since) == (True, None)
    assert paced(calm, [pressure(0.5)], 59.0).fast
    assert not paced(calm, [pressure(0.5)], 60.0).fast


def test_waiting_makes_it_fast_however_much_there_is() -> None:
    """The kernel's alarm counts by itself."""
    assert paced(Pace(), [pressure(0.1)], 0.0, stalled=True).fast


@pytest.mark.parametrize(
    ("found", "stalled", "why"),
    [
        ([pressure(0.2), pressure(0.61)], False, "x is 61% used"),
        ([pressure(0.3, seconds=20.0)], False, "x will be full within 60 s"),
        ([pressure(0.3)], True, "the kernel says that tasks wait for memory"),
    ],
)
def test_a_fast_pace_says_why(found: list[Pressure], stalled: bool, why: str) -> None:
    """What made it fast, for as long as it is."""
    pace = paced(Pace(), found, 0.0, stalled)

    assert pace.why == why
    assert paced(paced(pace, [pressure(0.1)], 1.0), [pressure(0.7)], 2.0).why == why
