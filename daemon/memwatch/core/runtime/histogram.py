"""Histogram of durations with fixed buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of observations by bucket. One thread observes, any thread reads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper limits of the buckets, ascending. The last bucket has no limit."""
        self.bounds: tuple[float, ...] = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """Return the number of observations up to each limit, and of all."""
        counts, so_far = list(self._counts), 0
        for place, count in enumerate(counts):
            so_far += count
            counts[place] = so_far
        return counts
