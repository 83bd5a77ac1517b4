"""Where available memory is heading: slopes that must agree, and the time that is left at their pace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

# Without a reading for so long, what was before says nothing of what is now.
GAP_SECONDS = 6.0
# What must have gone before a fall is a trend, as a part of the size; and what must be in use at all.
LEAST_FALL = 0.03
LEAST_USED = 0.40

# A little more than a second: what is read once a second changes in each of them.
STEP_SECONDS = 1.2


class Point(NamedTuple):
    """Available bytes at a monotonic time."""

    at: float
    available: int


class Horizon(NamedTuple):
    """Over which two times slopes are taken. Points closer than `spacing_seconds` tell nothing new."""

    short_seconds: float
    long_seconds: float
    spacing_seconds: float


# A model that is loaded, a program that runs away: gone in a minute.
NEAR = Horizon(5.0, 20.0, 0.095)
# A leak of a gigabyte a minute does not move 3 % in 20 seconds on any machine that serves models.
FAR = Horizon(60.0, 300.0, 4.75)


class Fall(Struct, frozen=True):
    """The last `long_seconds` of one target, oldest first. `pace`: how fast it falls in bytes a second, or 0."""

    horizon: Horizon
    points: tuple[Point, ...] = ()
    pace: float = 0.0

    def with_point(self, now: float, available: int, size: int) -> Fall:
        points = self.points
        if points and now - points[-1].at < self.horizon.spacing_seconds:
            return self
        first = 0
        while first < len(points) and now - points[first].at > self.horizon.long_seconds:
            first += 1
        points = (*points[first:], Point(now, available))
        return Fall(self.horizon, points, pace_of(points, self.horizon, size))


class Trend(Struct, frozen=True):
    """One target near and far, and when it was last seen."""

    near: Fall = Fall(NEAR)
    far: Fall = Fall(FAR)
    seen_at: float = -math.inf

    def with_point(self, now: float, available: int, size: int) -> Trend:
        before = Trend() if now - self.seen_at > GAP_SECONDS else self
        near, far = (fall.with_point(now, available, size) for fall in (before.near, before.far))
        return Trend(near, far, now)

    def seconds_to_full(self) -> float | None:
        """The time until nothing is available; None without a steady fall, and beyond a budget, where that is
        past.

        The far view counts only while the near one still falls at half its pace or more: what has stopped is no
        trend, though the mean of five minutes falls for a while yet.
        """
        available = self.near.points[-1].available if self.near.points else -1
        if available < 0:
            return None
        if self.near.pace:
            return available / self.near.pace if falls_on(self.near, steps=1) else None
        steady = self.far.pace and slower_of(self.near.points, NEAR) >= self.far.pace / 2
        return available / self.far.pace if steady else None

    @property
    def is_lasting(self) -> bool:
        """Whether it has fallen for two steps on end. One large allocation, and all is still again, does not."""
        return self.is_slow or falls_on(self.near, steps=2)

    @property
    def is_slow(self) -> bool:
        """Whether only the far view shows a fall, which then has been steady for a minute or more."""
        return not self.near.pace and bool(self.far.pace)


def falls_on(fall: Fall, steps: int) -> bool:
    """Whether each of the last `steps` stretches of `STEP_SECONDS` fell at a quarter of the pace or more."""
    now = fall.points[-1].at
    heights = [_available_at(fall.points, now - step * STEP_SECONDS) for step in range(steps + 1)]
    least = fall.pace * STEP_SECONDS / 4
    return all(before - after >= least for after, before in pairwise(heights))


def _available_at(points: Sequence[Point], at: float) -> int:
    """What was available then, by the last reading until then."""
    return next((point.available for point in reversed(points) if point.at <= at), points[0].available)


def pace_of(points: Sequence[Point], horizon: Horizon, size: int) -> float:
    """The slower of the two paces in bytes a second; 0 without a steady fall."""
    if not points or not size or points[-1].at - points[0].at < horizon.short_seconds:
        return 0.0
    available = points[-1].available
    highest = max(point.available for point in points)
    if highest - available < LEAST_FALL * size or 1 - available / size < LEAST_USED:
        return 0.0
    return slower_of(points, horizon)


def slower_of(points: Sequence[Point], horizon: Horizon) -> float:
    """The slower of the two falls, 0 where one of them is none."""
    recent = [point for point in points if points[-1].at - point.at <= horizon.short_seconds]
    slopes = (slope_of(recent), slope_of(points))
    return max(0.0, min(0.0 if slope is None else -slope for slope in slopes))


def slope_of(points: Sequence[Point]) -> float | None:
    """Least squares, in bytes a second; None where there are too few points to say."""
    count = len(points)
    if count < 3:
        return None
    start = points[0].at
    times = [point.at - start for point in points]
    mean_time = sum(times) / count
    mean = sum(point.available for point in points) / count
    spread = sum((time - mean_time) ** 2 for time in times)
    if spread <= 0:
        return None
    return (
        sum((time - mean_time) * (point.available - mean) for time, point in zip(times, points, strict=True))
        / spread
    )
