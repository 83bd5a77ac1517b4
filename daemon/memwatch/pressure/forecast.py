"""Forecast of the time until memory is full, from the slopes of available memory over two time spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

# After a gap of this length without a reading, earlier points are dropped.
GAP_SECONDS = 6.0
# A fall counts as a trend only after this fraction of the size was lost, and with at least this fraction in use.
MIN_FALL_RATIO = 0.03
MIN_USED_RATIO = 0.40

# A little more than one second, so that a value read once a second changes in every step.
STEP_SECONDS = 1.2


class Point(NamedTuple):
    """Available bytes at a monotonic time."""

    at: float
    available: int


class Horizon(NamedTuple):
    """The two time spans of the slopes. Points closer together than `spacing_seconds` are skipped."""

    short_seconds: float
    long_seconds: float
    spacing_seconds: float


# For a model being loaded or a runaway program, which can fill memory within a minute.
NEAR = Horizon(5.0, 20.0, 0.095)
# For leaks: 1 GB per minute is less than 3 % in 20 seconds on any machine that serves models.
FAR = Horizon(60.0, 300.0, 4.75)


class Slope(Struct, frozen=True):
    """Points of the last `long_seconds` of one target, oldest first. `pace`: its fall in bytes per second, or 0."""

    horizon: Horizon
    points: tuple[Point, ...] = ()
    pace: float = 0.0

    def with_point(self, now: float, available: int, size: int) -> Slope:
        points = self.points
        if points and now - points[-1].at < self.horizon.spacing_seconds:
            return self
        first = 0
        while first < len(points) and now - points[first].at > self.horizon.long_seconds:
            first += 1
        points = (*points[first:], Point(now, available))
        return Slope(self.horizon, points, compute_pace(points, self.horizon, size))


class Trend(Struct, frozen=True):
    """Fall of one target over the near and the far horizon, and the time of its last reading."""

    near: Slope = Slope(NEAR)
    far: Slope = Slope(FAR)
    seen_at: float = -math.inf

    def with_point(self, now: float, available: int, size: int) -> Trend:
        before = Trend() if now - self.seen_at > GAP_SECONDS else self
        near, far = (fall.with_point(now, available, size) for fall in (before.near, before.far))
        return Trend(near, far, now)

    def seconds_to_full(self) -> float | None:
        """Return the seconds until nothing is available. None without a steady fall, or if a budget is exceeded.

        The far horizon counts only while the near one falls at least half as fast. After a fall stops, the slope
        over five minutes stays negative for a while.
        """
        available = self.near.points[-1].available if self.near.points else -1
        if available < 0:
            return None
        if self.near.pace:
            return available / self.near.pace if keeps_falling(self.near, steps=1) else None
        steady = self.far.pace and slower_pace(self.near.points, NEAR) >= self.far.pace / 2
        return available / self.far.pace if steady else None

    @property
    def is_lasting(self) -> bool:
        """True if it has fallen in two consecutive steps, which a single large allocation does not cause."""
        return self.is_slow or keeps_falling(self.near, steps=2)

    @property
    def is_slow(self) -> bool:
        """True if only the far horizon shows a fall, which has then been steady for at least a minute."""
        return not self.near.pace and bool(self.far.pace)


def keeps_falling(fall: Slope, steps: int) -> bool:
    """Return True if each of the last `steps` steps of `STEP_SECONDS` fell at a quarter of the pace or more."""
    now = fall.points[-1].at
    levels = [_available_at(fall.points, now - step * STEP_SECONDS) for step in range(steps + 1)]
    least = fall.pace * STEP_SECONDS / 4
    return all(before - after >= least for after, before in pairwise(levels))


def _available_at(points: Sequence[Point], at: float) -> int:
    """Return the available bytes of the last reading up to time `at`, else of the first reading."""
    return next((point.available for point in reversed(points) if point.at <= at), points[0].available)


def compute_pace(points: Sequence[Point], horizon: Horizon, size: int) -> float:
    """Return the slower of the two falls in bytes per second, 0 without a steady fall."""
    if not points or not size or points[-1].at - points[0].at < horizon.short_seconds:
        return 0.0
    available = points[-1].available
    highest = max(point.available for point in points)
    if highest - available < MIN_FALL_RATIO * size or 1 - available / size < MIN_USED_RATIO:
        return 0.0
    return slower_pace(points, horizon)


def slower_pace(points: Sequence[Point], horizon: Horizon) -> float:
    """Return the slower of the two falls in bytes per second, 0 if either is not falling."""
    recent = [point for point in points if points[-1].at - point.at <= horizon.short_seconds]
    slopes = (fit_slope(recent), fit_slope(points))
    return max(0.0, min(0.0 if slope is None else -slope for slope in slopes))


def fit_slope(points: Sequence[Point]) -> float | None:
    """Return the least-squares slope in bytes per second, None with too few points."""
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
