"""Last ten minutes of a machine: its points, and the process that grows."""

from __future__ import annotations

import msgspec
import pytest

from memwatch_monitor.neighbours.neighbour import Neighbour
from memwatch_monitor.neighbours.tick import HolderTick, PoolTick, Tick
from memwatch_monitor.neighbours.trend import POINTS, HolderGrowth, Trend
from support.fakes import GIB

MIB = 1 << 20


def tick(unix: float, used: int | None = 8 * GIB, holders: tuple[HolderTick, ...] = ()) -> Tick:
    pools = (PoolTick("ram", "System RAM", 32 * GIB, used), PoolTick("none", "empty", 0, 0))
    return Tick(1, "run", "b", unix, 1.0, "low", "", pools, holders=holders)


def test_trend_has_ten_minutes_of_known_use() -> None:
    """A tick each second: the trend has one for each ten seconds, and no point for an unknown use."""
    one = Neighbour("b", "http://b", 0.0)
    for second in range(700):
        one.on_tick(msgspec.json.encode(tick(1000.0 + second, None if second == 690 else 8 * GIB)), second, 0.0)
    points = one.trend.points()

    assert len(points) == POINTS
    assert points[-1].unix - points[0].unix == 590.0
    assert points[0].used == {"ram": 0.25}
    assert points[-1].used == {}


@pytest.mark.parametrize(
    ("before", "seconds", "after", "growth"),
    [
        ((HolderTick("a", GIB),), 10.0, (HolderTick("a", GIB + 100 * MIB),), HolderGrowth("a", 10.0 * MIB)),
        ((HolderTick("a", GIB),), 10.0, (HolderTick("a", GIB + 9 * MIB),), None),
        ((HolderTick("a", GIB),), 10.0, (HolderTick("a", GIB // 2),), None),
        ((HolderTick("a", GIB),), 10.0, (HolderTick("b", 9 * GIB),), None),
        ((HolderTick("a", GIB), HolderTick("a", GIB)), 10.0, (HolderTick("a", 9 * GIB),), None),
        ((HolderTick("a", GIB),), 1.0, (HolderTick("a", 9 * GIB),), None),
        ((HolderTick("a", GIB),), 90.0, (HolderTick("a", 9 * GIB),), None),
        ((HolderTick("a", GIB),), -10.0, (HolderTick("a", 9 * GIB),), None),
    ],
    ids=["grows", "slowly", "shrinks", "another", "two of a name", "just now", "long ago", "clock went back"],
)
def test_growth_is_that_of_one_process(
    before: tuple[HolderTick, ...], seconds: float, after: tuple[HolderTick, ...], growth: HolderGrowth | None
) -> None:
    trend = Trend()
    trend.add(tick(1000.0, holders=before))

    assert trend.growth(tick(1000.0 + seconds, holders=after)) == growth


def test_growth_is_that_in_the_worst_pool() -> None:
    """Memory that a process takes elsewhere does not count, nor do ticks in which another pool was the worst."""
    trend = Trend()
    before, after = ((HolderTick("a", size * GIB, there=there * GIB),) for size, there in ((9, 1), (20, 2)))
    trend.add(msgspec.structs.replace(tick(1000.0, holders=before), worst="gpu0"))

    def growth(worst: str) -> HolderGrowth | None:
        return trend.growth(msgspec.structs.replace(tick(1010.0, holders=after), worst=worst))

    assert growth("gpu0") == HolderGrowth("a", GIB / 10)
    assert growth("ram") is None
