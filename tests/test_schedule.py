"""Ticks stay on their grid, and clocks that jump are seen for what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.schedule import Due, Moment, next_due, suspended_seconds, wall_jump_seconds


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
