"""Work of tasks that wait for memory in the last ten seconds: direct reclaim, compaction, refaults, swapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import Kernel

WINDOW_SECONDS = 10.0
# Device and kind of an error.
ErrorKey = tuple[str, str]
# The counters are read once a second. If they are the same as before, a new point is made after this time.
SPACING_SECONDS = 1.5


class ActivityPoint(Struct, frozen=True):
    """Counters and figures at a monotonic time.

    `device_bytes`: System RAM held by devices. `evicted_seconds`: total time that GPU queues were evicted.
    `failed_allocations`: total of allocations that programs report as failed. `errors`: errors of drivers so far.
    """

    at: float
    kernel: Kernel = Kernel()
    free_bytes: Bytes = Absent.NOT_AVAILABLE
    device_bytes: Bytes = Absent.NOT_AVAILABLE
    evicted_seconds: float | Absent = Absent.NOT_AVAILABLE
    failed_allocations: int = 0
    errors: Mapping[ErrorKey, int] = field(default_factory=dict)


# Direct reclaim of the machine: allocations per second that had to free memory. Each scans 32 pages or more.
MIN_ALLOCSTALLS = 1.0
MIN_SCANNED_PAGES = 32 * MIN_ALLOCSTALLS


class Activity(Struct, frozen=True):
    """Changes over the window. Rates are per second and 0 where the kernel does not count.

    `scanned_pages` and `freed_pages`: pages that direct reclaim looked at, and those of them that it freed.
    `swapped_pages`: pages read from and written to swap; None if not counted. `free_fall_bytes` and
    `device_growth_bytes`: how much less is free than at the highest point, and how much more devices hold.
    `evicted_ratio`: fraction of time in which GPU queues were evicted, above 1 if several were. `errors`: errors of
    drivers in the window.
    """

    allocstalls: float = 0.0
    scanned_pages: float = 0.0
    freed_pages: float = 0.0
    refaults: float = 0.0
    compact_stalls: float = 0.0
    compact_fails: float = 0.0
    swapped_pages: float | None = None
    free_fall_bytes: int = 0
    device_growth_bytes: int = 0
    evicted_ratio: float = 0.0
    failed_allocations: int = 0
    errors: Mapping[ErrorKey, int] = field(default_factory=dict)
    is_reclaim_counted: bool = False

    @property
    def is_reclaiming(self) -> bool:
        """Return True if tasks free memory of the machine themselves, or if the kernel does not count that.

        A cgroup at its own limit is not counted there.
        """
        is_busy = self.allocstalls >= MIN_ALLOCSTALLS or self.scanned_pages >= MIN_SCANNED_PAGES
        return is_busy or not self.is_reclaim_counted


AT_REST = Activity()
COUNTERS = (
    "allocstall_total",
    "pgscan_direct_total",
    "pgsteal_direct_total",
    "workingset_refault_file_total",
    "compact_stall_total",
    "compact_fail_total",
    "pswpin_total",
    "pswpout_total",
)
counters_of: attrgetter[tuple[Any, ...]] = attrgetter(*COUNTERS)
NO_RATES = (0.0,) * len(COUNTERS)


def with_activity_point(points: tuple[ActivityPoint, ...], point: ActivityPoint) -> tuple[ActivityPoint, ...]:
    """Return the points of the last `WINDOW_SECONDS` and the last one before them, one for each new reading."""
    if points and point.kernel is points[-1].kernel and point.at - points[-1].at < SPACING_SECONDS:
        return points
    first = 0
    while first + 1 < len(points) and point.at - points[first + 1].at >= WINDOW_SECONDS:
        first += 1
    return (*points[first:], point)


def compute_activity(points: tuple[ActivityPoint, ...], now: ActivityPoint) -> Activity:
    """Return the changes since the first point. Counters that decreased count as unchanged."""
    is_swap_counted = not isinstance(now.kernel.pswpin_total, Absent)
    is_reclaim_counted = not isinstance(now.kernel.allocstall_total, Absent)
    if not points or now.at <= points[0].at:
        return Activity(swapped_pages=0.0 if is_swap_counted else None, is_reclaim_counted=is_reclaim_counted)
    first, last = points[0], points[-1]
    # A window that has just begun would turn one event into a high rate.
    seconds = max(WINDOW_SECONDS, last.at - first.at)
    allocstalls, scanned, freed, refaults, stalls, fails, *swapped = _rates(first.kernel, last.kernel, seconds)
    return Activity(
        allocstalls,
        scanned,
        freed,
        refaults,
        stalls,
        fails,
        sum(swapped) if is_swap_counted else None,
        _fall(points, now),
        count_rise(first.device_bytes, now.device_bytes),
        _rise_seconds(first.evicted_seconds, now.evicted_seconds) / seconds,
        count_rise(first.failed_allocations, now.failed_allocations),
        count_new_errors(first.errors, now.errors),
        is_reclaim_counted,
    )


def _rates(before: Kernel, after: Kernel, seconds: float) -> Sequence[float]:
    """Return the rates of `COUNTERS`. At rest both are the same object."""
    if before is after:
        return NO_RATES
    return [
        count_rise(old, new) / seconds for old, new in zip(counters_of(before), counters_of(after), strict=True)
    ]


def count_new_errors(before: Mapping[ErrorKey, int], now: Mapping[ErrorKey, int]) -> Mapping[ErrorKey, int]:
    """Return the counts that rose, and by how much. Counts that decreased, after a driver was reloaded, are not."""
    if now == before:
        return {}
    return {key: count - before.get(key, 0) for key, count in now.items() if count > before.get(key, 0)}


def count_rise(before: int | Absent | None, now: int | Absent | None) -> int:
    """Return how much a count rose; 0 if one of them is unknown, or if it fell after a restart."""
    return max(0, now - before) if isinstance(before, int) and isinstance(now, int) else 0


def _rise_seconds(before: float | Absent, now: float | Absent) -> float:
    return 0.0 if isinstance(before, Absent) or isinstance(now, Absent) else max(0.0, now - before)


def _fall(points: tuple[ActivityPoint, ...], now: ActivityPoint) -> int:
    known = [point.free_bytes for point in points if isinstance(point.free_bytes, int)]
    return max(0, max(known) - now.free_bytes) if known and isinstance(now.free_bytes, int) else 0
