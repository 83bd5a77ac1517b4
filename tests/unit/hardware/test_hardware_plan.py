"""Sizes of the steps of the comparison with real hardware."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.plan import GIB, MIB, MIN_BYTES, TooFullError, plan_steps


def test_empty_card_gets_two_known_sizes_and_the_rest_of_a_quarter() -> None:
    assert plan_steps([24 * GIB]) == [256 * MIB, GIB, 6 * GIB - GIB - 256 * MIB]


def test_smallest_free_figure_counts() -> None:
    """Headroom with reclaim may be far more than MemFree."""
    assert sum(plan_steps([100 * GIB, 2 * GIB, 90 * GIB])) == GIB // 2


def test_wanted_sizes_are_reduced_to_the_quarter() -> None:
    assert plan_steps([4 * GIB], [512 * MIB, GIB]) == [512 * MIB, 512 * MIB]


def test_full_gpu_is_rejected() -> None:
    with pytest.raises(TooFullError, match="only 100 MiB are free"):
        plan_steps([100 * MIB])


@given(free=st.lists(st.integers(4 * MIN_BYTES + 8 * MIB, 200 * GIB), min_size=1))
def test_steps_never_take_more_than_a_quarter(free: list[int]) -> None:
    steps = plan_steps(free)

    assert steps
    assert sum(steps) <= min(free) // 4
    assert min(steps) >= MIN_BYTES
