"""The recent past in memory: one ring of plain columns, asked for by name and time."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

# A pause longer than this many intervals is shown as a gap, never bridged by a line.
GAP_INTERVALS = 2.5


@dataclass(frozen=True, slots=True)
class Bucket:
    """A stretch of time and the least, mean and greatest value in it; None means a gap."""

    boottime: float
    minimum: float | None
    average: float | None
    maximum: float | None


class History:
    """A bounded ring of readings. One thread adds; any thread may ask. Everything handed out is a copy.

    Times are boot time (it never jumps and counts suspend), so a corrected wall clock reorders nothing.
    """

    def __init__(self, capacity: int, interval_seconds: float) -> None:
        self._lock = threading.Lock()
        self._capacity = capacity
        self._interval = interval_seconds
        self._times = array("d", [nan]) * capacity
        self._columns: dict[str, array[float]] = {}
        self._added = 0

    def add(self, boottime: float, figures: Mapping[str, float]) -> None:
        """Keep one tick's figures. A name not seen before gets a column; a name not given gets a gap."""
        with self._lock:
            at = self._added % self._capacity
            self._times[at] = boottime
            for name, value in figures.items():
                column = self._columns.get(name)
                if column is None:
                    column = self._columns[name] = array("d", [nan]) * self._capacity
                column[at] = value
            if len(figures) != len(self._columns):
                for name in self._columns.keys() - figures.keys():
                    self._columns[name][at] = nan
            self._added += 1

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    @property
    def end(self) -> float:
        """Boot time of the newest reading; 0 before the first."""
        return self._times[(self._added - 1) % self._capacity] if self._added else 0.0

    def names(self) -> list[str]:
        with self._lock:
            return list(self._columns)

    def since(self, name: str, boottime: float) -> list[tuple[float, float]]:
        """Every (time, value) of one column from `boottime` on, oldest first; gaps are left out."""
        times, values = self._copy(name)
        start = bisect_left(times, boottime)
        pairs = zip(times[start:], values[start:], strict=True)
        return [(at, value) for at, value in pairs if not isnan(value)]

    def query(self, name: str, start: float, end: float, points: int) -> list[Bucket]:
        """At most about `points` buckets between two boot times. An extreme is never averaged away."""
        times, values = self._copy(name)
        first, last = bisect_left(times, start), bisect_right(times, end)
        width = max((end - start) / points, 1e-9)
        return bucketed(times[first:last], values[first:last], start, width, self._interval * GAP_INTERVALS)

    def resized(self, capacity: int, interval_seconds: float) -> History:
        """A ring of another size with the same past, as much of it as fits."""
        ring = History(capacity, interval_seconds)
        with self._lock:
            order = self._order()[-capacity:]
            for at in order:
                figures = {name: column[at] for name, column in self._columns.items()}
                ring.add(self._times[at], figures)
        return ring

    def _copy(self, name: str) -> tuple[Sequence[float], Sequence[float]]:
        """One column in order of time. Raises KeyError for a name never added."""
        with self._lock:
            column = self._columns[name]
            if self._added <= self._capacity:
                return self._times[: self._added], column[: self._added]
            at = self._added % self._capacity
            return self._times[at:] + self._times[:at], column[at:] + column[:at]

    def _order(self) -> list[int]:
        start = max(0, self._added - self._capacity)
        return [index % self._capacity for index in range(start, self._added)]


def bucketed(
    times: Sequence[float], values: Sequence[float], start: float, width: float, gap: float
) -> list[Bucket]:
    """Readings in order of time, gathered by stretches of `width` seconds; a Bucket of None marks a gap."""
    buckets: list[Bucket] = []
    group: list[float] = []
    group_at, slot, last_at = 0.0, -1, None
    for at, value in zip(times, values, strict=True):
        if isnan(value):
            continue
        if last_at is not None and at - last_at > gap:
            _close(buckets, group, group_at)
            buckets.append(Bucket(last_at + gap / 2, None, None, None))
            slot = -1
        if int((at - start) / width) != slot:
            _close(buckets, group, group_at)
            slot, group_at = int((at - start) / width), at
        group.append(value)
        last_at = at
    _close(buckets, group, group_at)
    return buckets


def _close(buckets: list[Bucket], group: list[float], at: float) -> None:
    if group:
        buckets.append(Bucket(at, min(group), sum(group) / len(group), max(group)))
        group.clear()
