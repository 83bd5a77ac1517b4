"""Where available memory is heading: two slopes that must agree, and the time that is left at their pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SHORT_SECONDS = 5.0
LONG_SECONDS = 20.0
# Without a reading for so long, what was before says nothing of what is now.
GAP_SECONDS = 6.0
# Points closer than this tell the slopes nothing new.
SPACING_SECONDS = 0.095
# What must have gone before a fall is a trend, as a part of the size; and what must be in use at all.
LEAST_FALL = 0.03
LEAST_USED = 0.40


class Point(NamedTuple):
    """Available bytes at a monotonic time."""

    at: float
    available: int


@dataclass(frozen=True, slots=True)
class Trend:
    """The last `LONG_SECONDS` of one target, oldest first."""

    points: tuple[Point, ...] = ()

    def with_point(self, now: float, available: int) -> Trend:
        points = self.points
        if points and now - points[-1].at > GAP_SECONDS:
            points = ()
        if points and now - points[-1].at < SPACING_SECONDS:
            return self
        first = 0
        while first < len(points) and now - points[first].at > LONG_SECONDS:
            first += 1
        return Trend((*points[first:], Point(now, available)))

    def seconds_to_full(self, size: int) -> float | None:
        """The time until nothing is available at the slower of the two paces; None without a steady fall."""
        if not self.points or not size or self.points[-1].at - self.points[0].at < SHORT_SECONDS:
            return None
        now, available = self.points[-1]
        highest = max(point.available for point in self.points)
        if highest - available < LEAST_FALL * size or 1 - available / size < LEAST_USED:
            return None
        recent = [point for point in self.points if now - point.at <= SHORT_SECONDS]
        slopes = (slope_of(recent), slope_of(self.points))
        if any(slope is None or slope >= 0 for slope in slopes):
            return None
        return available / min(-slope for slope in slopes if slope is not None)


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
