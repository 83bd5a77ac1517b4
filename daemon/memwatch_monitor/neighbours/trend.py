"""Last ten minutes of a machine in a few figures, without decoding its ticks again, in the time of its clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from memwatch.core.snapshot import LevelOrUnknown
from memwatch_monitor.neighbours.tick import HolderTick, Tick
from memwatch_monitor.render.status_line import MIN_BYTES_PER_SECOND, MIN_GROWTH_SECONDS

TREND_SECONDS, STEP_SECONDS = 600.0, 10.0
POINTS = int(TREND_SECONDS / STEP_SECONDS)
# A curve has a gap where no point came for longer than these steps.
GAP_STEPS = 2.5
# Growth is measured from the oldest of these ticks, a step apart.
GROWTH_TICKS = 4
# The clock of a machine may jump: older ticks say nothing about growth.
MAX_GROWTH_SECONDS = 60.0


class TrendPoint(Struct, frozen=True):
    """Level of a machine, and the used part of each pool whose use is known, by its id."""

    unix: float
    level: LevelOrUnknown
    used: Mapping[str, float]


class HolderGrowth(Struct, frozen=True):
    """The process that grows fastest in the worst pool. `bytes_per_second`: None if it grows in others as well."""

    name: str
    bytes_per_second: float | None


class Trend:
    """Points of the last TREND_SECONDS, and the holders of the last few. Not thread-safe."""

    def __init__(self) -> None:
        self._points: deque[TrendPoint] = deque(maxlen=POINTS)
        self._holders: deque[tuple[float, str, tuple[HolderTick, ...]]] = deque(maxlen=GROWTH_TICKS)

    def add(self, tick: Tick) -> None:
        """Add a tick. The caller sends one for each STEP_SECONDS."""
        self._points.append(TrendPoint(tick.unix, tick.level, use_of_pools(tick)))
        self._holders.append((tick.unix, tick.worst, tick.holders))

    def points(self) -> Sequence[TrendPoint]:
        """Return the points, the oldest first."""
        return tuple(self._points)

    def growth(self, last: Tick) -> HolderGrowth | None:
        """Return the process that grows fastest in the worst pool, None below MIN_BYTES_PER_SECOND.

        Ticks in which another pool was the worst one do not count. They name processes without their PID: one whose
        name several of them have is left out.
        """
        known = [
            (unix, holders)
            for unix, worst, holders in self._holders
            if worst == last.worst and MIN_GROWTH_SECONDS <= last.unix - unix <= MAX_GROWTH_SECONDS
        ]
        if not known:
            return None
        then, before = known[0][0], sizes_by_name(known[0][1])
        rates = {
            name: (size - before[name]) / (last.unix - then)
            for name, size in sizes_by_name(last.holders).items()
            if name in before
        }
        name = max(rates, key=lambda one: rates[one], default="")
        return HolderGrowth(name, rates[name]) if rates.get(name, 0.0) >= MIN_BYTES_PER_SECOND else None


def use_of_pools(tick: Tick) -> Mapping[str, float]:
    """Return the used part of each pool whose use is known, by its id."""
    return {pool.id: pool.used / pool.size for pool in tick.pools if pool.used is not None and pool.size}


def sizes_by_name(holders: Sequence[HolderTick]) -> Mapping[str, int]:
    """Return the memory in the worst pool of each process whose name no other one has."""
    counts = Counter(one.name for one in holders)
    return {one.name: one.bytes_there for one in holders if counts[one.name] == 1}
