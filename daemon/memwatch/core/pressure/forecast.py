"""Forecast of the time until memory is full, from the slopes of available memory over two time spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from typing import NamedTuple

from msgspec import Struct

# After a gap of this length without a reading, earlier points are dropped.
GAP_SECONDS = 6.0
# Fewer points have no slope.
MIN_POINTS = 3


class Point(NamedTuple):
    """Available bytes at a monotonic time."""

    at: float
    available: int


class Fall(NamedTuple):
    """A steady fall in bytes per second, and how long it has lasted. `pace` is 0 without one."""

    pace: float
    seconds: float


NO_FALL = Fall(0.0, 0.0)


class Horizon(NamedTuple):
    """The two time spans of the slopes. Points closer together than `spacing_seconds` are skipped.

    A fall counts as a trend only after `min_fall_ratio` of the size was lost, and with at least `min_used_ratio` in
    use. A trend lasts if it falls in each of some steps of `step_seconds`. `bridges_gaps`: where readings of
    the short span are missing, the last ones stand for it.
    """

    short_seconds: float
    long_seconds: float
    spacing_seconds: float
    step_seconds: float
    min_fall_ratio: float
    min_used_ratio: float
    bridges_gaps: bool = True


# For a collapse: 34.0 to 12.7 GiB in 1.5 s (dgx-spark-playbooks#116). Only for memory that is read in every tick.
FAST = Horizon(0.3, 3.0, 0.015, 0.15, 0.02, 0.50, bridges_gaps=False)
# For a model being loaded or a runaway program, which can fill memory within a minute. The step is a little more
# than one second, so that a value read once a second changes in each.
NEAR = Horizon(5.0, 20.0, 0.095, 1.2, 0.03, 0.50)
# For leaks: 1 GB per minute is less than 3 % in 20 seconds on any machine that serves models.
FAR = Horizon(60.0, 300.0, 4.75, 1.2, 0.03, 0.40)
# A fall is expected to go on for this part of the time that it has lasted: a linker takes gigabytes for two
# seconds. A leak has been steady for minutes.
LASTS_RATIO, SLOW_LASTS_RATIO = 0.65, 6.0
LONG_FALL_SECONDS = 15.0
# Two horizons that differ by less than this show the same fall.
SAME_PACE_RATIO = 1.25
# Steps that are counted back; a stated forecast needs all of them.
MAX_STEPS = 3
# From this use on a forecast of less than these seconds is stated: most loads of models, builds and caches stop
# before. On the traces, those that this leaves out came true in a quarter of all seconds.
STATED_FROM = ((60.0, 0.90), (300.0, 0.80), (math.inf, 0.85))
# Use that has been as high as this within an hour and fell again will do so again: a forecast of a minute or more
# is stated only above it.
SOON_SECONDS, CAME_BACK_SECONDS, CAME_BACK_RATIO = 60.0, 3600.0, 0.03
# The flat part before a fall ends where this fraction of the fall has happened.
FALL_BEGINS_RATIO = 0.05


class Forecast(NamedTuple):
    """Seconds until nothing is available.

    `fell_seconds`: how long it has been falling, at most the longer time span. `is_stated`: likely enough to be
    shown. `is_lasting`: it fell in two consecutive steps, which a single large allocation does not cause.
    """

    seconds: float
    fell_seconds: float
    is_stated: bool
    is_lasting: bool


class Past(NamedTuple):
    """The least that was available before it came back by `CAME_BACK_RATIO` of the size, when; the least since."""

    came_back: float = -math.inf
    at: float = -math.inf
    lowest: float = math.inf

    def with_point(self, now: float, available: int, size: int) -> Past:
        if available <= self.lowest:
            return self if available == self.lowest else Past(self.came_back, self.at, available)
        if available - self.lowest < CAME_BACK_RATIO * size:
            return self
        is_lower = self.lowest <= self.came_back or not self._is_recent(now)
        low, at = (self.lowest, now) if is_lower else (self.came_back, self.at)
        return Past(low, at, available)

    def has_been(self, available: int, now: float) -> bool:
        """Check if less than this was available a short time ago, and came back."""
        return self.came_back <= available and self._is_recent(now)

    def _is_recent(self, now: float) -> bool:
        return now - self.at <= CAME_BACK_SECONDS


class Slope(Struct, frozen=True):
    """Points of the last `long_seconds` of one target, oldest first.

    `fall`: what they show; `highest`: the most that was available, kept because there are up to 200 points.
    """

    horizon: Horizon
    points: tuple[Point, ...] = ()
    fall: Fall = NO_FALL
    highest: int = 0

    def with_point(self, now: float, available: int, size: int) -> Slope:
        points = self.points
        if points and now - points[-1].at < self.horizon.spacing_seconds:
            return self
        first = 0
        while first < len(points) and now - points[first].at > self.horizon.long_seconds:
            first += 1
        kept = points[first:] + (Point(now, available),)  # noqa: RUF005  a third of the time of unpacking
        highest = self._find_highest(points[:first], kept)
        return Slope(self.horizon, kept, find_fall(kept, self.horizon, size, highest), highest)

    def _find_highest(self, dropped: Sequence[Point], kept: Sequence[Point]) -> int:
        """Return the most that was available. All points are compared only if the highest one is dropped."""
        latest = kept[-1].available
        if not self.points or latest >= self.highest:
            return latest
        if any(point.available == self.highest for point in dropped):
            return max([point.available for point in kept])
        return self.highest

    @property
    def pace(self) -> float:
        return self.fall.pace


class Trend(Struct, frozen=True):
    """Fall of one target over three horizons, its falls that ended, and the time of its last reading."""

    fast: Slope = Slope(FAST)
    near: Slope = Slope(NEAR)
    far: Slope = Slope(FAR)
    past: Past = Past()
    seen_at: float = -math.inf

    def with_point(self, now: float, available: int, size: int, is_fast: bool = False) -> Trend:
        """Add a reading. `is_fast`: the value is read in every tick."""
        before = Trend(past=self.past) if now - self.seen_at > GAP_SECONDS else self
        past = before.past.with_point(now, available, size)
        fast = before.fast.with_point(now, available, size) if is_fast else before.fast
        near = before.near.with_point(now, available, size)
        return Trend(fast, near, before.far.with_point(now, available, size), past, now)

    def forecast(self, size: int) -> Forecast | None:
        """Return the forecast of the steepest horizon. None without a steady fall, or if a budget is exceeded.

        The far horizon counts only while the near one falls at least half as fast. After a fall stops, the slope
        over five minutes stays negative for a while.
        """
        available = self.near.points[-1].available if self.near.points else -1
        if available < 0:
            return None
        if self.near.pace > self.fast.pace / SAME_PACE_RATIO and not self._has_stopped():
            # The near horizon has seen more of the same fall.
            return self._forecast(self.near, available, size, max(count_steps(self.near), count_steps(self.fast)))
        if self.fast.pace:
            return self._forecast(self.fast, available, size, count_steps(self.fast))
        steady = self.far.pace and slower_pace(self.near.points, NEAR) >= self.far.pace / 2
        return self._forecast(self.far, available, size, MAX_STEPS) if steady else None

    def _has_stopped(self) -> bool:
        """Return True if the fast horizon shows that the fall of the near one has ended in the last moments."""
        now = self.near.points[-1].at
        latest = [point for point in self.fast.points if now - point.at <= 2 * FAST.step_seconds]
        if len(latest) < MIN_POINTS:
            return False
        seconds = latest[-1].at - latest[0].at
        return latest[0].available - latest[-1].available < self.near.pace * seconds / 4

    def _forecast(self, slope: Slope, available: int, size: int, steps: int) -> Forecast | None:
        if not steps:
            return None
        seconds, fell = available / slope.pace, slope.fall.seconds
        # The near horizon ends after 20 s; a fall that fills it may have begun earlier.
        lasted = max(fell, self.far.fall.seconds) if fell >= LONG_FALL_SECONDS else fell
        is_late = 1 - available / size >= next(used for most, used in STATED_FROM if seconds < most)
        is_new = seconds < SOON_SECONDS or not self.past.has_been(available, self.seen_at)
        is_likely = seconds <= lasted * (SLOW_LASTS_RATIO if slope is self.far else LASTS_RATIO)
        return Forecast(seconds, fell, steps >= MAX_STEPS and is_late and is_new and is_likely, steps >= 2)


def count_steps(fall: Slope) -> int:
    """Return in how many of the last steps it fell, counted back from now; 0 without a pace."""
    if not fall.pace:
        return 0
    return next(steps for steps in range(MAX_STEPS, -1, -1) if keeps_falling(fall, steps))


def keeps_falling(fall: Slope, steps: int) -> bool:
    """Return True if each of the last `steps` steps fell at a quarter of the pace or more."""
    least = fall.pace * fall.horizon.step_seconds / 4
    levels = list_steps(fall.points, fall.horizon.step_seconds, steps)
    return all(before - after >= least for after, before in pairwise(levels))


def list_steps(points: Sequence[Point], seconds: float, steps: int) -> list[int]:
    """Return the available bytes at the last reading and at each of some steps before it, newest first.

    A fall over a gap is one step: the next one goes back from the reading before the gap. A machine that is almost
    full misses readings.
    """
    at, last = points[-1].at, points[-1]
    levels = [last.available]
    for _ in range(steps):
        at = min(at - seconds, last.at - seconds / 2)
        last = next((point for point in reversed(points) if point.at <= at), points[0])
        levels.append(last.available)
    return levels


def find_fall(points: Sequence[Point], horizon: Horizon, size: int, highest: int) -> Fall:
    """Return the fall that the points show. Its pace is the slower of the two slopes, 0 if it is too short.

    `highest`: the most that was available at one of the points.
    """
    if not points or not size:
        return NO_FALL
    available = points[-1].available
    if 1 - available / size < horizon.min_used_ratio:
        return NO_FALL
    lost = highest - available
    if lost < horizon.min_fall_ratio * size:
        return NO_FALL
    falling = since_fall(points, available + lost * (1 - FALL_BEGINS_RATIO))
    is_short = points[-1].at - points[0].at < horizon.short_seconds
    return Fall(0.0 if is_short else slower_pace(falling, horizon), points[-1].at - falling[0].at)


def since_fall(points: Sequence[Point], highest: float) -> Sequence[Point]:
    """Return the points from the last one above `highest` on: what was before it does not flatten the slope."""
    first = len(points) - 1
    while first > 0 and points[first].available < highest:
        first -= 1
    return points[first:]


def slower_pace(points: Sequence[Point], horizon: Horizon) -> float:
    """Return the slower of the two falls in bytes per second, 0 if either is not falling."""
    recent = [point for point in points if points[-1].at - point.at <= horizon.short_seconds]
    if len(recent) < MIN_POINTS and horizon.bridges_gaps:
        recent = list(points[-MIN_POINTS:])
    slopes = (fit_slope(recent), fit_slope(points))
    return max(0.0, min(0.0 if slope is None else -slope for slope in slopes))


def fit_slope(points: Sequence[Point]) -> float | None:
    """Return the least-squares slope in bytes per second, None with too few points."""
    count = len(points)
    if count < MIN_POINTS:
        return None
    start = points[0].at
    times = [point.at - start for point in points]
    mean_time = sum(times) / count
    distances = [time - mean_time for time in times]
    spread: float = sum(map(mul, distances, distances))
    if spread <= 0:
        return None
    # The distances sum up to 0, so the mean of the available bytes makes no difference.
    rise: float = sum(map(mul, distances, [point.available for point in points]))
    return rise / spread
