"""Test that an OOM kill counted in one file and named in another is one kill."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memwatch.kernel_log import KernelLog, OomKill
from memwatch.pressure.oom_kills import GRACE_SECONDS, NewKills, OomKillCount, count_new_kills
from memwatch.snapshot import Kernel


def log_of(kills: int) -> KernelLog:
    """Return a log that named this many kills; it keeps the last 16."""
    return KernelLog(tuple(OomKill(number, number, "x", 0, "machine") for number in range(1, kills + 1))[-16:])


def new_kills(ticks: list[tuple[int, int | None]], every: float = 1.0) -> list[tuple[int, int]]:
    """Return the new kills of each tick (named, unnamed), from ticks (counted, named; None without a log)."""
    before, found = OomKillCount(), []
    for at, (counted, named) in enumerate(ticks):
        log = None if named is None else log_of(named)
        before, new = count_new_kills(before, Kernel(counted), log, at * every)
        found.append((len(new.named), new.unnamed))
    return found


def test_kills_before_the_start_are_not_new() -> None:
    """Neither the count since boot nor the existing log entries are new."""
    assert new_kills([(7, 3), (7, 3)]) == [(0, 0), (0, 0)]


def test_kill_counted_first_waits_for_its_name() -> None:
    """The kill is reported with its name one tick later."""
    assert new_kills([(7, 0), (8, 0), (8, 1), (8, 1), (8, 1), (8, 1)]) == [(0, 0), (0, 0), (1, 0), *[(0, 0)] * 3]


def test_kill_named_first_is_not_counted_again() -> None:
    """The count that follows is the same kill."""
    assert new_kills([(7, 0), (7, 1), (8, 1), (8, 1), (8, 1), (8, 1)]) == [(0, 0), (1, 0), *[(0, 0)] * 4]


def test_missing_name_ends_the_wait() -> None:
    """Its log entry was overwritten, so the kill is reported without a name."""
    assert sum(unnamed for _, unnamed in new_kills([(7, 0), (9, 0), *[(9, 0)] * 4])) == 2
    assert GRACE_SECONDS < 3


def test_kill_without_a_log_is_reported_at_once() -> None:
    """Without a log no name can follow."""
    assert new_kills([(7, None), (8, None)]) == [(0, 0), (0, 1)]


def test_named_kill_is_reported_without_a_counter() -> None:
    """Linux before 4.13 has no oom_kill counter."""
    before, _ = count_new_kills(OomKillCount(), None, log_of(0), 0.0)

    assert count_new_kills(before, None, log_of(1), 1.0)[1] == NewKills(log_of(1).kills)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_no_kill_is_reported_twice(steps: list[tuple[int, int]]) -> None:
    """For any order of counts and names: every name once, and in total no more than were counted or named."""
    counted, named, ticks = 0, 0, [(0, 0)]
    for more_counted, more_named in steps:
        counted, named = counted + more_counted, named + more_named
        ticks.append((counted, named))
    ticks += [(counted, named)] * 5

    found = new_kills([(count, name) for count, name in ticks])

    assert sum(one for one, _ in found) == named
    assert sum(other for _, other in found) <= counted
