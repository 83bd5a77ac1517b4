"""Test which notable ticks are kept, and which of them are given out when there are more than asked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.snapshot import Kernel, Level, Pressure, Snapshot
from memwatch.reporting.history.notable_ticks import (
    NotableTick,
    NotableTicks,
    NotableTickSelector,
)
from support.sample_snapshots import calm_workstation


def kept(count: int, max_ticks: int = 100) -> NotableTicks:
    """Return ticks at 1, 2, … seconds."""
    ticks = NotableTicks(max_ticks)
    for second in range(1, count + 1):
        ticks.add(NotableTick(float(second), b"%d" % second))
    return ticks


def times(ticks: list[NotableTick]) -> list[float]:
    return [one.boottime for one in ticks]


@pytest.mark.parametrize(
    ("max_ticks", "found"),
    [
        (1, [9.0]),
        (3, [7.0, 8.0, 9.0]),
        (7, [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
        (50, [float(at) for at in range(3, 10)]),
    ],
)
def test_newest_ticks_are_given_out_oldest_first(max_ticks: int, found: list[float]) -> None:
    """The ticks before a crash are the last ones."""
    assert times(kept(20).between(3.0, 9.0, max_ticks)) == found


def test_ticks_at_both_ends_of_the_time_are_included() -> None:
    assert times(kept(20).between(5.0, 6.0, 50)) == [5.0, 6.0]
    assert kept(20).between(5.25, 5.75, 50) == []


def test_oldest_ticks_are_dropped_above_the_limit() -> None:
    ticks = kept(20, max_ticks=5)

    assert len(ticks) == 5
    assert times(ticks.between(0.0, 100.0, 50)) == [16.0, 17.0, 18.0, 19.0, 20.0]


def sample(at: float, level: Level = Level.LOW, ratio: float = 0.5, kills: int = 0) -> Snapshot:
    pressure = Pressure("ram", level, level, ratio)
    return replace(calm_workstation(), monotonic=at, pressure=(pressure,), kernel=Kernel(kills, 0))


class Selection:
    """A selector that saw a first tick at 0."""

    def __init__(self, level: Level = Level.LOW) -> None:
        self.selector = NotableTickSelector()
        self.selector.select(*[sample(0.0, level)] * 2)
        self.level = level

    def add(self, at: float, ratio: float = 0.5) -> Snapshot | None:
        one = sample(at, self.level, ratio)
        return self.selector.select(one, one)


@pytest.mark.parametrize(
    ("level", "seconds"),
    [
        (Level.LOW, 3600.0),
        (Level.MEDIUM, 300.0),
        (Level.HIGH, 300.0),
        (Level.CRITICAL, 300.0),
    ],
)
def test_worst_tick_of_each_interval_is_kept(level: Level, seconds: float) -> None:
    """Of an hour that is calm, and of five minutes from medium on."""
    selection = Selection(level)

    assert selection.add(10.0, 0.7) is None
    assert selection.add(seconds - 1.0) is None
    found = selection.add(seconds)

    assert found is not None
    assert found.pressure[0].ratio == 0.7
    assert selection.add(seconds + 1.0) is None


def test_changed_level_and_new_kill_are_kept_at_once() -> None:
    selection = Selection()
    turned, again = sample(1.0, Level.HIGH), sample(2.0, Level.HIGH)
    killed = sample(3.0, Level.HIGH, kills=1)

    assert selection.selector.select(turned, turned) is turned
    assert selection.selector.select(again, again) is None
    assert selection.selector.select(killed, killed) is killed


def test_later_of_two_ticks_that_are_as_bad_is_kept() -> None:
    """It is nearer to what happens then."""
    selection = Selection()
    selection.add(10.0, 0.7)
    selection.add(20.0, 0.7)
    selection.add(30.0, 0.6)

    found = selection.add(3600.0)

    assert found is not None
    assert found.monotonic == 20.0


def test_hourly_ticks_of_eighty_days_are_kept() -> None:
    """And no more than twice as many, at 5 KiB each."""
    hours = 80 * 24
    ticks = NotableTicks()
    for hour in range(3 * hours):
        ticks.add(NotableTick(3600.0 * hour, b""))

    assert hours <= len(ticks) <= 2 * hours
