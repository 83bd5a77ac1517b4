"""Sizes of the steps of the comparison with real hardware."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.plan import GIB, MIB, MIN_BYTES, TooFullError, plan_steps


def test_empty_card_gets_two_known_sizes_and_the_rest_of_a_quarter() -> None:
    assert plan_steps([24 * GIB], [24 * GIB]) == [256 * MIB, GIB, 6 * GIB - GIB - 256 * MIB]


def test_smallest_free_figure_counts() -> None:
    """Headroom may be far more than MemFree, which is what can be allocated without reclaim."""
    assert sum(plan_steps([100 * GIB, 90 * GIB], [2 * GIB, 3 * GIB])) == GIB
    assert sum(plan_steps([100 * GIB, 4 * GIB], [90 * GIB])) == GIB


def test_wanted_sizes_are_reduced_to_the_safe_part() -> None:
    assert plan_steps([4 * GIB], [4 * GIB], [512 * MIB, GIB]) == [512 * MIB, 512 * MIB]


@pytest.mark.parametrize(
    ("headroom", "certain", "why"),
    [
        ([100 * MIB], [100 * MIB], "100 MiB can be allocated and 100 MiB are free"),
        ([9 * GIB], [60 * MIB], "9216 MiB can be allocated and 60 MiB are free"),
        ([], [], "0 MiB can be allocated"),
    ],
)
def test_full_gpu_is_rejected(headroom: list[int], certain: list[int], why: str) -> None:
    with pytest.raises(TooFullError, match=why):
        plan_steps(headroom, certain)


@given(
    headroom=st.lists(st.integers(4 * MIN_BYTES + 8 * MIB, 200 * GIB), min_size=1),
    certain=st.lists(st.integers(2 * MIN_BYTES + 4 * MIB, 200 * GIB), min_size=1),
)
def test_steps_never_take_more_than_the_safe_part(headroom: list[int], certain: list[int]) -> None:
    steps = plan_steps(headroom, certain)

    assert steps
    assert sum(steps) <= min(headroom) // 4
    assert sum(steps) <= min(certain) // 2
    assert min(steps) >= MIN_BYTES
