"""Signals other than usage: each raises a target to a level and gives a reason. Pure functions.

Tasks that wait for memory work: direct reclaim, compaction, refaults and swapping of the last ten seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from memwatch.core import units
from memwatch.core.accounting.driver_errors import describe_kind
from memwatch.core.kernel_log import FAILED_ALLOCATIONS
from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import SHORT_USED, CgroupPressure, Kernel, Level
from memwatch.core.units import MIB

if TYPE_CHECKING:
    from memwatch.core.pressure.inputs import DriverErrors, PressureInputs, Target

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


# A reason that is over, as `judge.add_age` writes it.
PAST = re.compile(r"(?P<age>\d+) s ago: (?P<text>.*)", re.DOTALL)
# An event holds its level for this time; other signals hold theirs for `clear_after_seconds`.
EVENT_HOLD_SECONDS = 60.0
PSI_WINDOW_SECONDS = 10.0
# Least available memory, in bytes and as a fraction of the size; the smaller of the two applies.
FLOORS = ((Level.CRITICAL, 256 * MIB, 0.10), (Level.HIGH, 512 * MIB, 0.20))
# PSI thresholds: fractions of the window in which some, or all, tasks stalled; least usage for `psi_full`. Stalls
# of some tasks need a shortage to be more than medium: a machine with 73 % available had 43 % (syncloud#769). So do
# those of all tasks, unless the machine reclaims: a cgroup at its limit had 25 to 36 % at 20 % use.
SOME_MEDIUM, SOME_HIGH = 0.05, 0.20
FULL_HIGH, FULL_CRITICAL, FULL_USED = 0.05, 0.20, 0.60
TTF_MEDIUM_SECONDS = 1800.0
SWAP_LEFT, SWAP_USED = 0.10, 0.90
# Pages per second read from or written to swap from which a machine without free swap is running out.
MIN_SWAPPED_PAGES = 10.0
# Direct reclaim: allocations per second that had to free memory themselves. Machines with a full page cache have a
# few now and then; a livelock has hundreds, and reads again what it has just dropped.
LIVELOCK_ALLOCSTALLS, LIVELOCK_REFAULTS = 20.0, 100.0
# Pages that direct reclaim looks at per second, and the fraction of them that it frees, if it finds nothing.
VAIN_PAGES, VAIN_FREED = 1000.0, 0.05
# Failed compactions per second. Serving DGX Sparks have 1 to 2 all day (sparkring#173).
MIN_COMPACT_FAILS, MIN_COMPACT_SOME = 5.0, 0.02
# Growth of device memory in the window that makes failing compaction matter, as a fraction of the size.
MIN_DEVICE_GROWTH = 0.001
EVICTED_HIGH = 0.20
# Failed allocations of a driver in the window, and fractions of the size: free memory, and how much it fell.
MIN_ERRORS, MAX_FREE, MIN_FREE_FALL = 3, 0.03, 0.01


class Signal(Struct, frozen=True):
    """An observation that raises the level until `hold_seconds` after it was last true.

    `hold_seconds` None: `clear_after_seconds`, as for levels from usage.
    """

    name: str
    level: Level
    text: str
    hold_seconds: float | None = None


class StallRatios(Struct, frozen=True):
    """Fractions of the last `PSI_WINDOW_SECONDS` (0 to 1) in which some task, or every task, stalled on memory."""

    some: float
    full: float


class TickChanges(Struct, frozen=True):
    """Changes since the previous tick, as counts. `stalled`: None without PSI. `activity` covers the last 10 s."""

    stalled: StallRatios | None = None
    cgroup_oom_kills: int = 0
    driver_errors: tuple[DriverErrors, ...] = ()
    activity: Activity = AT_REST


def find_signals(
    target: Target, seconds_to_full: float | None, inputs: PressureInputs, changes: TickChanges
) -> Iterator[Signal]:
    """Yield this target's signals now, except a critical time to full, which needs two ticks (see judge)."""
    activity, stalled = changes.activity, changes.stalled
    if seconds_to_full is not None and seconds_to_full < TTF_MEDIUM_SECONDS:
        # Memory that fills up is medium: a model being loaded looks the same until it stops.
        yield Signal("ttf", Level.MEDIUM, full_in(seconds_to_full))
    if target.is_host:
        yield from _floor(target)
    if target.is_ram:
        yield from _swap(target, inputs, activity)
        if stalled is not None and (stalled.some or stalled.full):
            yield from _psi_signals(target, stalled, changes, inputs.cgroup_pressure)
            yield from _livelock(stalled, activity)
        if isinstance(inputs.psi, Absent):
            yield from _vain_reclaim(activity)
        if activity.evicted_ratio >= EVICTED_HIGH:
            yield _evicted(activity)
        if inputs.fragmented_nodes:
            yield from _fragmentation(target, inputs, changes)
    if inputs.kills.named or inputs.kills.unnamed:
        yield from _kills(target, inputs)
    if target.kind == "cgroup" and changes.cgroup_oom_kills > 0:
        text = "OOM killer: killed a process at this limit"
        yield Signal("oom_kill", Level.CRITICAL, text, EVENT_HOLD_SECONDS)
    if inputs.driver_errors:
        yield from _driver(target, inputs, inputs.driver_errors, changes)


def _floor(target: Target) -> Iterator[Signal]:
    # Small machines run out of memory before their usage reaches the percentage thresholds.
    for level, least, part in FLOORS:
        if target.available_bytes < min(least, part * target.size_bytes):
            yield Signal("floor", level, f"only {units.size(max(0, target.available_bytes))} available")
            return


def _psi_signals(
    target: Target, stalled: StallRatios, changes: TickChanges, throttled: CgroupPressure | None
) -> Iterator[Signal]:
    some, full, used = stalled.some, stalled.full, target.used_ratio
    is_of_machine = used >= SHORT_USED or changes.activity.is_reclaiming
    stall = f"some tasks stalled on memory for {some * 100:.0f}% of the last {PSI_WINDOW_SECONDS:.0f} s"
    if full >= FULL_CRITICAL and used >= FULL_USED and is_of_machine:
        yield Signal("psi_full", Level.CRITICAL, _all_stalled(full))
    if (full >= FULL_HIGH and is_of_machine) or (some >= SOME_HIGH and used >= SHORT_USED):
        yield Signal("psi", Level.HIGH, stall + _explain(used, changes, throttled))
    elif some >= SOME_MEDIUM or full >= FULL_HIGH:
        yield Signal("psi", Level.MEDIUM, stall + _explain(used, changes, throttled))


def _all_stalled(full: float) -> str:
    return f"all tasks stalled on memory for {full * 100:.0f}% of the last {PSI_WINDOW_SECONDS:.0f} s"


def _explain(used: float, changes: TickChanges, throttled: CgroupPressure | None) -> str:
    """Return the cause of stalls on a machine with available memory, as the end of a sentence."""
    if used >= SHORT_USED:
        return ""
    if throttled:
        return f", although memory is available: cgroup {throttled.cgroup} is slowed by its memory limit"
    if changes.activity.refaults >= LIVELOCK_REFAULTS:
        return ", although memory is available: pages of files are read again soon after they were dropped"
    if not changes.activity.is_reclaiming:
        return ", although memory is available: a cgroup is slowed by its memory limit"
    return ""


def _livelock(stalled: StallRatios, activity: Activity) -> Iterator[Signal]:
    """Tasks spend their time freeing and reading again the same pages, whatever MemAvailable says.

    A cgroup at its own limit does not count as direct reclaim of the machine, so it is not mistaken for this.
    """
    if stalled.full < FULL_CRITICAL or activity.allocstalls < LIVELOCK_ALLOCSTALLS:
        return
    if activity.refaults >= LIVELOCK_REFAULTS:
        text = (
            f"reclaim makes no progress: {activity.allocstalls:,.0f} allocations per second had to free memory, "
            f"and {activity.refaults:,.0f} pages of files per second were read again"
        )
        yield Signal("livelock", Level.CRITICAL, text)


def _vain_reclaim(activity: Activity) -> Iterator[Signal]:
    """Reclaim that finds nothing on kernels without PSI, such as those of JetPack: tasks stall on it."""
    scanned, freed = activity.scanned_pages, activity.freed_pages
    if activity.allocstalls < LIVELOCK_ALLOCSTALLS or scanned < VAIN_PAGES or freed > VAIN_FREED * scanned:
        return
    text = (
        f"reclaim finds nothing: {activity.allocstalls:,.0f} allocations per second had to free memory, "
        f"and {freed / scanned * 100:.0f}% of the pages they looked at were freed"
    )
    yield Signal("livelock", Level.HIGH, text)


def _evicted(activity: Activity) -> Signal:
    """amdgpu evicts the queues of compute programs while System RAM is short: a stall that PSI does not contain."""
    is_short = activity.allocstalls >= MIN_ALLOCSTALLS
    level = Level.CRITICAL if is_short else Level.HIGH
    text = f"GPU queues were evicted for {min(1.0, activity.evicted_ratio) * 100:.0f}% of the last 10 s"
    return Signal("evicted", level, text + (", while allocations had to free memory" if is_short else ""))


def full_in(seconds: float) -> str:
    return f"full in about {units.forecast(seconds)} at the current rate"


def _swap(target: Target, inputs: PressureInputs, activity: Activity) -> Iterator[Signal]:
    swap = inputs.swap
    if isinstance(swap, Absent) or not swap.size_bytes:
        return
    # Swap that filled up over days and is at rest is no shortage.
    if activity.swapped_pages is not None and activity.swapped_pages < MIN_SWAPPED_PAGES:
        return
    if swap.size_bytes - swap.used_bytes < SWAP_LEFT * swap.size_bytes and target.used_ratio > SWAP_USED:
        yield Signal("swap", Level.CRITICAL, "less than 10% of swap and of memory is left")


def _kills(target: Target, inputs: PressureInputs) -> Iterator[Signal]:
    """A kill at a cgroup's limit says nothing about System RAM: it is an event.

    One for lack of memory of NUMA nodes concerns the pools of these nodes: memory of a GPU may be one.
    """
    if target.is_ram and inputs.kills.unnamed_of_machine:
        yield Signal("oom_kill", Level.CRITICAL, "OOM killer: killed a process", EVENT_HOLD_SECONDS)
    for kill in inputs.kills.of_machine if target.is_ram else inputs.kills.named:
        pools = {inputs.node_pools.get(node) for node in kill.nodes}
        if target.id in pools or (target.is_ram and (not pools or None in pools)):
            yield Signal("oom_kill", Level.CRITICAL, kill.text, EVENT_HOLD_SECONDS)


def _fragmentation(target: Target, inputs: PressureInputs, changes: TickChanges) -> Iterator[Signal]:
    """No free large block is the normal state of a serving machine (138 to 891 MB free, none of 4 MiB, on four of
    four DGX Sparks). It matters while devices allocate, compaction fails, and tasks wait for it.
    """
    activity, stalled = changes.activity, changes.stalled
    grows = activity.device_growth_bytes >= MIN_DEVICE_GROWTH * target.size_bytes
    fails = activity.compact_fails >= MIN_COMPACT_FAILS and activity.compact_stalls > 0
    if grows and fails and (stalled is None or stalled.some >= MIN_COMPACT_SOME):
        where = ", ".join(map(str, inputs.fragmented_nodes))
        text = (
            f"no free 4 MiB block on NUMA node {where}, and {activity.compact_fails:.0f} compactions per second "
            "fail while a GPU allocates"
        )
        yield Signal("fragmentation", Level.HIGH, text)


def _driver(
    target: Target, inputs: PressureInputs, errors: Iterable[DriverErrors], changes: TickChanges
) -> Iterator[Signal]:
    """An error of a driver is medium. An allocation that failed is high together with a sign of shortage."""
    mine = [one for one in changes.driver_errors if target.id in one.places]
    if mine:
        yield Signal("driver", Level.MEDIUM, _reported(mine), EVENT_HOLD_SECONDS)
    recent = changes.activity.errors
    failed = [
        one
        for one in errors
        if target.id in one.places and one.kind in FAILED_ALLOCATIONS and (one.device, one.kind) in recent
    ]
    why = (
        _shortage(target, inputs, changes, sum(recent[one.device, one.kind] for one in failed)) if failed else None
    )
    if why:
        yield Signal("driver", Level.HIGH, f"{_reported(failed)}, and {why}", EVENT_HOLD_SECONDS)


def _reported(errors: Iterable[DriverErrors]) -> str:
    return "; ".join(f"the driver of {one.device} reported {describe_kind(one.kind)}" for one in errors)


def _shortage(target: Target, inputs: PressureInputs, changes: TickChanges, errors: int) -> str | None:
    """Return the sign that a failed allocation was no retry that succeeded, as the end of a sentence.

    MemFree falls and one error is logged at each start of an engine that works; 75 were in one that did not, at
    22.5 GiB available and 2.5 GiB free of 121.7 (vllm#54200). Drivers allocate what is free, not what is available.
    """
    activity, free = changes.activity, inputs.free_bytes
    if activity.failed_allocations:
        return "a program reports a failed allocation"
    if not target.is_ram:
        return None
    if activity.allocstalls >= MIN_ALLOCSTALLS:
        return f"{activity.allocstalls:.0f} allocations per second had to free memory first"
    falls = activity.free_fall_bytes >= MIN_FREE_FALL * target.size_bytes
    if errors >= MIN_ERRORS and falls and isinstance(free, int) and free < MAX_FREE * target.size_bytes:
        return f"only {units.size(free)} are free, {units.size(activity.free_fall_bytes)} less than 10 s ago"
    return None
