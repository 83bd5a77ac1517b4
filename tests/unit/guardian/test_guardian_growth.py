"""Test what the guardian knows of a fall whose figures are not all of one time, or end near zero."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatchd.guardian.growth import Growth
from memwatchd.guardian.records import Decision, PoolState, State
from support.guardian_states import GIB, candidate, confirmed, short_ram

IDLE = 3.0
MIB = 1 << 20


def pool_of(available: int, ready: int | None = None, swap: int = 0) -> PoolState:
    pool = short_ram(max(0, available), evidence=("util", "floor"))
    return replace(pool, ready_bytes=ready, swap_free_bytes=swap)


def decide_at(growth: Growth, pool: PoolState, held: int, innocent: int = 40 * GIB) -> Decision:
    found = candidate(777, held, None), candidate(100, innocent, None)
    grown, fall, most = growth.measure(found)
    now = 1000.0
    return confirmed(State(now, now, (pool,), grown, frozenset(), fall, most))


def fall_to_zero(below: int, swapped: int, counted: bool) -> tuple[Growth, PoolState, int]:
    """Let a process take 4 GiB, and then more at 0 available bytes: pages below the watermarks, and swap.

    With `counted` the readings show what the kernel gave there.
    """
    growth, pool, held = Growth(), pool_of(0), 0
    for step in range(41):
        at = IDLE + step * 0.1
        held = min(step, 40) * (4 * GIB + below + swapped) // 40
        from_free = min(held, 4 * GIB + below)
        ready = 4 * GIB + below - from_free
        pool = pool_of(ready - below, ready if counted else None, GIB * 8 - (held - from_free) if counted else 0)
        growth.add_pool(at, pool)
        if step in (0, 40):
            growth.add(at, at, (candidate(777, 2 * GIB + held), candidate(100, 40 * GIB)))
    return growth, pool, 2 * GIB + held


@pytest.mark.parametrize(("below", "swapped"), [(6 * GIB, 0), (0, 6 * GIB), (2 * GIB, 4 * GIB)])
def test_growth_from_what_the_kernel_gives_at_zero_names_the_cause(below: int, swapped: int) -> None:
    growth, pool, held = fall_to_zero(below, swapped, counted=True)

    decision = decide_at(growth, pool, held)

    assert decision.victim is not None
    assert decision.victim.pid == 777


def test_growth_that_nothing_explains_names_no_cause() -> None:
    """Another process gave back what this one took: that may be all that happened."""
    growth, pool, held = fall_to_zero(6 * GIB, 0, counted=False)

    decision = decide_at(growth, pool, held)

    assert decision.victim is None
    assert "the cause is not known" in decision.reason


def test_fall_until_the_newest_figures_explains_their_growth() -> None:
    """The scan began with 3 of 6 GiB lost. It read the figures of devices half a second later, with all lost."""
    growth = Growth()
    for step in range(31):
        growth.add_pool(step * 0.1, pool_of(6 * GIB))
    growth.add(2.5, 2.5, (candidate(777, 2 * GIB), candidate(100, 40 * GIB)))
    for step in range(1, 11):
        growth.add_pool(3.0 + step * 0.1, pool_of(6 * GIB - step * 6 * GIB // 10))
    growth.add(3.5, 4.0, (candidate(777, 8 * GIB), candidate(100, 40 * GIB)))

    decision = decide_at(growth, pool_of(0), 8 * GIB)

    assert decision.victim is not None
    assert decision.victim.pid == 777


@pytest.mark.parametrize("resident", [17 * MIB, 5 * MIB], ids=["much is shared since the fork", "little is shared"])
def test_fork_bomb_has_no_cause(resident: int) -> None:
    """Each process takes 2 MiB, and its RSS has more: pages shared since the fork count in each."""
    growth = Growth()
    for second in range(5):
        number = 4**second
        found = [candidate(1000 + one, resident, None, device_bytes=0) for one in range(number)]
        pool = pool_of(2 * GIB - number * 2 * MIB)
        growth.add_pool(second, pool)
        growth.add(second, second, found)
    grown, fall, most = growth.measure(found)
    decision = confirmed(State(4.0, 4.0, (pool,), grown, frozenset(), fall, most))

    assert decision.victim is None
    assert "the cause is not known" in decision.reason
