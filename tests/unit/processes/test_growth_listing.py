"""Which processes count as listed between two readings of sizes, ten seconds apart."""

from __future__ import annotations

import pytest

from memwatch.core.model import Process
from memwatch.core.processes.growth import GrowthTracker, LeakRules

GIB = 1 << 30


def process(pid: int, size: int = GIB, start: float = 50.0) -> Process:
    return Process(pid, start, f"p{pid}", size, size, "rss")


def listed(growth: GrowthTracker, gone_seconds: float = 0.0) -> set[int]:
    return {one.process.pid for one in growth.since(0.0, 0.0, gone_seconds)}


def test_new_list_counts_before_sizes_are_read_again() -> None:
    growth = GrowthTracker()
    growth.add(100.0, (process(1), process(2)), LeakRules())

    growth.add(101.0, (process(1),), LeakRules())

    assert listed(growth) == {1}
    assert listed(growth, gone_seconds=25.0) == {1, 2}


def test_ended_process_is_not_listed_although_a_driver_still_lists_it() -> None:
    """Its start time tells it from a later process with its PID."""
    growth, both = GrowthTracker(), (process(1), process(2))
    growth.add(100.0, both, LeakRules())

    growth.add(101.0, both, LeakRules(), ended={2})
    at_once = listed(growth)
    growth.add(102.0, (process(1), process(2)), LeakRules())
    later = listed(growth)
    growth.add(111.0, (process(1), process(2, start=105.0)), LeakRules())

    assert (at_once, later, listed(growth)) == ({1}, {1}, {1, 2})


def test_list_that_could_not_be_read_ends_no_process() -> None:
    growth = GrowthTracker()
    growth.add(100.0, (process(1),), LeakRules())

    growth.add(101.0, (), LeakRules())

    assert listed(growth) == {1}


def falling_after(*sizes: int, now: int) -> list[bool]:
    """Return the growth of a process with these readings, ten seconds apart, and a size three seconds later."""
    growth = GrowthTracker()
    for number, size in enumerate(sizes):
        growth.add(100.0 + 10.0 * number, (process(1, size),), LeakRules())
    growth.add(93.0 + 10.0 * len(sizes), (process(1, now),), LeakRules())
    return [one.falling for one in growth.since(70.0, 0.0)]


@pytest.mark.parametrize(
    ("sizes", "now", "falls"),
    [
        # Its GPU memory fell after its last reading: it is not growing for up to ten seconds more.
        ((GIB, 9 * GIB), 3 * GIB, True),
        ((GIB, 9 * GIB), 10 * GIB, False),
        # It still holds more than 30 s ago, and falls until a reading rises.
        ((GIB, 9 * GIB, 5 * GIB), 5 * GIB, True),
        ((GIB, 9 * GIB, 5 * GIB, 6 * GIB), 6 * GIB, False),
        # Some returned pages are no fall.
        ((GIB, 9 * GIB), 9 * GIB - 4096, False),
        ((GIB, 9 * GIB), 9 * GIB - (1 << 20), True),
    ],
)
def test_process_falls_from_a_smaller_size_until_a_reading_rises(
    sizes: tuple[int, ...], now: int, falls: bool
) -> None:
    assert falling_after(*sizes, now=now) == [falls]


def test_growth_ends_with_the_size_of_the_newest_list() -> None:
    """A page says how large a process is beside how much it grew: sizes are read every ten seconds only."""
    growth = GrowthTracker()
    for boottime, size in ((100.0, GIB), (110.0, 2 * GIB), (114.0, 5 * GIB)):
        growth.add(boottime, (process(1, size),), LeakRules())

    (one,) = growth.since(100.0, 0.0)

    assert (one.to_boottime, one.to_bytes, one.grown_bytes) == (114.0, 5 * GIB, 4 * GIB)
    for window in growth.windows_of(process(1), 114.0).values():
        assert window is not None
        assert (window.to_boottime, window.to_bytes) == (114.0, 5 * GIB)


@pytest.mark.parametrize(
    ("later", "size", "grows"),
    [(3.0, 9 * GIB, True), (9.0, 9 * GIB, True), (11.0, 9 * GIB, False), (11.0, 9 * GIB + 64 * (1 << 20), True)],
)
def test_process_that_has_not_risen_for_ten_seconds_does_not_grow(later: float, size: int, grows: bool) -> None:
    """Although it is larger than half a minute ago."""
    growth = GrowthTracker()
    for number in range(3):
        growth.add(100.0 + 10.0 * number, (process(1, (1 + 4 * number) * GIB),), LeakRules())
    for second in range(1, int(later) + 1):
        growth.add(120.0 + second, (process(1, 9 * GIB if second < later else size),), LeakRules())

    (found,) = growth.since(90.0, 0.0)
    assert (found.grown_bytes >= 8 * GIB, found.falling) == (True, not grows)
