"""Aggregation of the ticks of one interval: minimum, mean and maximum of every series, and the worst tick."""

from __future__ import annotations

import math
from collections.abc import Mapping

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history.column import Aggregate
from memwatch.monitor.history.tier import Row


class Interval:
    """The ticks since `began` (monotonic seconds). Under pressure there are ten ticks per stored row."""

    def __init__(self, began: float = -math.inf) -> None:
        self.began = began
        self.worst: Snapshot | None = None
        self._ticks: list[Mapping[str, float]] = []

    def add(self, snapshot: Snapshot, figures: Mapping[str, float]) -> None:
        self._ticks.append(figures)
        if self.worst is None or fullness(snapshot) >= fullness(self.worst):
            self.worst = snapshot

    def row(self) -> Row:
        """Return a cell for every series with a value in any of the ticks."""
        if len(self._ticks) == 1:
            return self._ticks[0]
        names = dict.fromkeys(name for figures in self._ticks for name in figures)
        return {name: self._aggregate(name) for name in names}

    def _aggregate(self, name: str) -> Aggregate:
        values = [figures[name] for figures in self._ticks if name in figures]
        return Aggregate(min(values), sum(values) / len(values), max(values))


def fullness(snapshot: Snapshot) -> float:
    """Return the highest pressure ratio of any target, 0 to 1. The worst tick has the maximum."""
    return max((pressure.ratio for pressure in snapshot.pressure), default=0.0)
