"""The history in memory: three tiers of rings of different resolution, queried by series name and time."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf, isnan

from msgspec import Struct

from memwatch.reporting.history.tier import Row, RowBlock, SeriesSlice, Tier, TierSpec

# A pause longer than this many rows is a gap in the result.
GAP_ROWS = 2.5
TIER_SPECS = (TierSpec(1.0, 3600.0), TierSpec(10.0, 86_400.0), TierSpec(300.0, 30 * 86_400.0))
MAX_SERIES = 500
# Include a reading at the exact end of a query despite rounding of its time.
TOLERANCE_SECONDS = 1e-6
# Measured on 8,640 rows of values that compress badly, including the encoding of the buckets as JSON.
ROW_SECONDS, BUCKET_SECONDS = 0.35e-6, 2.5e-6


class Bucket(Struct, frozen=True):
    """Minimum, mean and maximum in a span of time. None means a gap."""

    boottime: float
    minimum: float | None
    average: float | None
    maximum: float | None


class History:
    """A bounded history. Call `add` from one thread; queries are thread-safe and return copies.

    Times are boot time, which never jumps and includes suspend, so corrections of the wall clock do not reorder
    rows. Times before this boot are negative. When the slot of a coarser tier's row ends, the row is computed from
    the rows of the finer tier, including their extremes.
    """

    def __init__(self, lengths: Sequence[TierSpec] = TIER_SPECS, max_series: int = MAX_SERIES) -> None:
        self._lock = threading.Lock()
        self.tiers: list[Tier] = [Tier(length, max_series) for length in lengths]
        self._rolls_at = -inf

    def add(self, boottime: float, figures: Mapping[str, float]) -> None:
        """Add single readings."""
        self.add_row(boottime, figures)

    def add_row(self, boottime: float, row: Row) -> None:
        """Add a row to the finest tier, and the rows of coarser tiers whose slots end with it."""
        with self._lock:
            self.tiers[0].add(boottime, row)
            if boottime >= self._rolls_at:
                self._roll_up()

    def restore(self, past: Sequence[Iterable[RowBlock]]) -> tuple[int, ...]:
        """Load rows of earlier runs, a list per tier, oldest first, and compute missing rows of coarser tiers.

        Return for each tier the number of the row after the loaded ones.
        """
        with self._lock:
            for tier, strips in zip(self.tiers, past, strict=True):
                for row_block in strips:
                    if not len(tier) or (row_block.times and row_block.times[0] > tier.end):
                        tier.load(row_block)
            loaded = tuple(tier.added for tier in self.tiers)
            self._roll_up()
            return loaded

    def __len__(self) -> int:
        with self._lock:
            return len(self.tiers[0])

    @property
    def end(self) -> float:
        """Return the boot time of the newest reading; 0 before the first."""
        with self._lock:
            return self.tiers[0].end

    @property
    def start(self) -> float:
        """Return the boot time of the oldest row of any tier; 0 before the first."""
        with self._lock:
            return min((tier.time_of(tier.first) for tier in self.tiers if len(tier)), default=0.0)

    def names(self) -> list[str]:
        """Return the names of all series, in the order of their first row."""
        with self._lock:
            return list(dict.fromkeys(chain.from_iterable(tier.columns for tier in self.tiers)))

    def since(self, name: str, boottime: float) -> list[tuple[float, float]]:
        """Return (time, maximum) of a series in the finest tier from `boottime` on, oldest first."""
        with self._lock:
            tier = self.tiers[0]
            found = tier.series_slice(name, tier.number_at(boottime), tier.added)
        rows = zip(found.times, found.minimum, found.maximum, strict=True)
        return [(at, maximum) for at, minimum, maximum in rows if not isnan(minimum)]

    def query(self, name: str, start: float, end: float, points: int) -> list[Bucket]:
        """Return at most `points` buckets between two boot times. Extremes are preserved.

        Raises KeyError for an unknown series.
        """
        width = max((end - start) / points, 1e-9)
        with self._lock:
            if not any(name in tier.columns for tier in self.tiers):
                raise KeyError(name)
            slices = self._slices(name, start, end, width)
        return to_buckets(slices, start, width, points)

    def estimate_seconds(self, series: int, start: float, end: float, points: int) -> float:
        """Return about how long a query of this many series takes."""
        width = max((end - start) / points, 1e-9)
        with self._lock:
            tiers = self.tiers[self._finest_needed(width) :]
            rows = sum(tier.number_at(end) - tier.number_at(start) for tier in tiers)
        return series * (rows * ROW_SECONDS + min(points, rows) * BUCKET_SECONDS)

    def drop(self, names: Iterable[str]) -> None:
        """Forget series with all their rows."""
        with self._lock:
            for name in names:
                for tier in self.tiers:
                    tier.drop(name)

    def written_since(self, tier: int, number: int) -> tuple[RowBlock, int]:
        """Return the rows of a tier from `number` on that are still in the ring, and the number of the next row."""
        with self._lock:
            ring = self.tiers[tier]
            return ring.row_block(number, ring.added), ring.added

    def resized(self, lengths: Sequence[TierSpec]) -> History:
        """Return a history with other lengths and the same rows, as many as fit, or `self` for equal lengths."""
        if [tier.spec for tier in self.tiers] == list(lengths):
            return self
        other = History(lengths)
        with self._lock:
            other.tiers = [tier.resized(length) for tier, length in zip(self.tiers, lengths, strict=True)]
        return other

    def _roll_up(self) -> None:
        """Add the rows of coarser tiers whose slots have ended, and note when the next one ends."""
        for finer, coarser in zip(self.tiers, self.tiers[1:], strict=False):
            roll_up(finer, coarser)
        pairs = zip(self.tiers, self.tiers[1:], strict=False)
        self._rolls_at = min((rolls_at(finer, coarser) for finer, coarser in pairs), default=inf)

    def _slices(self, name: str, start: float, end: float, width: float) -> list[SeriesSlice]:
        """Return the rows for a query, in order of time.

        Most come from the coarsest tier that is fine enough. Coarser tiers supply older rows. Finer tiers supply
        the newest rows, which are not yet aggregated.
        """
        best = self._finest_needed(width)
        found: list[SeriesSlice] = []
        until = end + TOLERANCE_SECONDS
        for tier in self.tiers[best:]:
            first, last = tier.number_at(start), tier.number_at(until)
            if first < last:
                found.insert(0, tier.series_slice(name, first, last))
                until = tier.time_of(first)
        begin = max(start, self.tiers[best].next_slot)
        for tier in reversed(self.tiers[:best]):
            first, last = tier.number_at(begin), tier.number_at(end + TOLERANCE_SECONDS)
            if first < last:
                found.append(tier.series_slice(name, first, last))
                begin = tier.next_slot
        return found

    def _finest_needed(self, width: float) -> int:
        """Return the index of the coarsest tier that is fine enough for buckets of this width."""
        return max((index for index, tier in enumerate(self.tiers) if tier.spec.step_seconds <= width), default=0)


def rolls_at(finer: Tier, coarser: Tier) -> float:
    """Return when the slot of the next row of the coarser tier ends."""
    if len(coarser):
        slot = coarser.slot_of(coarser.end) + 1
    elif len(finer):
        slot = coarser.slot_of(finer.time_of(finer.first))
    else:
        return -inf
    return (slot + 1) * coarser.spec.step_seconds


def roll_up(finer: Tier, coarser: Tier) -> None:
    """Add the rows of the coarser tier whose slots have ended."""
    now = coarser.slot_of(finer.end)
    first = finer.number_at(coarser.next_slot) if len(coarser) else finer.first
    while first < finer.added and (slot := coarser.slot_of(finer.time_of(first))) < now:
        last = finer.number_at((slot + 1) * coarser.spec.step_seconds)
        coarser.add(finer.time_of(first), finer.combined(first, last))
        first = max(last, first + 1)  # progress even if times are too large to resolve a step


def to_buckets(slices: Sequence[SeriesSlice], start: float, width: float, points: int) -> list[Bucket]:
    """Aggregate rows, in order of time, to at most `points` buckets of `width` seconds. None marks a gap."""
    known = [_known(one) for one in slices]
    times = list(chain.from_iterable(one.times for one in known))
    minimum = list(chain.from_iterable(one.minimum for one in known))
    maximum = list(chain.from_iterable(one.maximum for one in known))
    weights = list(chain.from_iterable([one.step_seconds] * len(one.times) for one in known))
    sums = list(chain.from_iterable([mean * one.step_seconds for mean in one.mean] for one in known))
    buckets: list[Bucket] = []
    first, slot_before = 0, -1
    while first < len(times):
        slot = min(points - 1, int((times[first] - start) / width))
        last = len(times) if slot == points - 1 else bisect_left(times, start + (slot + 1) * width, first + 1)
        pause = times[first] - times[first - 1] if first else 0.0
        if slot > slot_before + 1 and first and pause > GAP_ROWS * max(weights[first - 1 : first + 1]):
            buckets.append(Bucket(start + (slot_before + 1) * width, None, None, None))
        least, most = min(minimum[first:last]), max(maximum[first:last])
        mean = sum(sums[first:last]) / sum(weights[first:last])  # rounded, so that of equal values may be outside
        buckets.append(Bucket(times[first], least, min(most, max(least, mean)), most))
        first, slot_before = last, slot
    return buckets


def _known(series_slice: SeriesSlice) -> SeriesSlice:
    """Remove the gaps from a stretch."""
    if not any(map(isnan, series_slice.minimum)):
        return series_slice
    at = [index for index, value in enumerate(series_slice.minimum) if value == value]
    columns = (series_slice.times, series_slice.minimum, series_slice.mean, series_slice.maximum)
    times, minimum, mean, maximum = ([column[index] for index in at] for column in columns)
    return SeriesSlice(times, minimum, mean, maximum, series_slice.step_seconds)
