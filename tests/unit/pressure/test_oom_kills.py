"""A kill that is counted in one file and named in another is one kill."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memwatch.kernel_log import KernelLog, OomKill
from memwatch.pressure.oom_kills import GRACE_SECONDS, NewKills, Reckoning, reckon
from memwatch.snapshot import Kernel


def log_of(kills: int) -> KernelLog:
    """A log in which so many were named; it keeps the last 16."""
    return KernelLog(tuple(OomKill(number, number, "x", 0, "machine") for number in range(1, kills + 1))[-16:])


def news(ticks: list[tuple[int, int | None]], every: float = 1.0) -> list[tuple[int, int]]:
    """How many are new on each tick, named and not; a tick is (counted, named or None where no log is read)."""
    before, found = Reckoning(), []
    for at, (counted, named) in enumerate(ticks):
        log = None if named is None else log_of(named)
        before, new = reckon(before, Kernel(counted), log, at * every)
        found.append((len(new.named), new.unnamed))
    return found


def test_what_was_before_the_start_is_no_news() -> None:
    """Neither the count since boot nor what the log held already."""
    assert news([(7, 3), (7, 3)]) == [(0, 0), (0, 0)]


def test_counted_first_and_named_later() -> None:
    """The name is waited for."""
    assert news([(7, 0), (8, 0), (8, 1), (8, 1), (8, 1), (8, 1)]) == [(0, 0), (0, 0), (1, 0), *[(0, 0)] * 3]


def test_named_first_and_counted_later() -> None:
    """The count that follows is the same kill."""
    assert news([(7, 0), (7, 1), (8, 1), (8, 1), (8, 1), (8, 1)]) == [(0, 0), (1, 0), *[(0, 0)] * 4]


def test_a_name_that_never_comes_is_not_waited_for_long() -> None:
    """Overwritten in the log: told without it."""
    assert sum(unnamed for _, unnamed in news([(7, 0), (9, 0), *[(9, 0)] * 4])) == 2
    assert GRACE_SECONDS < 3


def test_without_the_log_a_kill_is_told_at_once() -> None:
    """There is nobody to wait for."""
    assert news([(7, None), (8, None)]) == [(0, 0), (0, 1)]


def test_a_kernel_that_does_not_count_still_names() -> None:
    """Linux before 4.13."""
    before, _ = reckon(Reckoning(), None, log_of(0), 0.0)

    assert reckon(before, None, log_of(1), 1.0)[1] == NewKills(log_of(1).kills)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_no_kill_is_told_twice(steps: list[tuple[int, int]]) -> None:
    """However counts and names drift apart: every name once, and in all no more than were counted or named."""
    counted, named, ticks = 0, 0, [(0, 0)]
    for more_counted, more_named in steps:
        counted, named = counted + more_counted, named + more_named
        ticks.append((counted, named))
    ticks += [(counted, named)] * 5

    found = news([(count, name) for count, name in ticks])

    assert sum(one for one, _ in found) == named
    assert sum(other for _, other in found) <= counted
