"""Test both sides of each threshold of the signals: the last value with a signal, and the first without one."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from memwatch.core.kernel_log import FAILED_ALLOCATIONS
from memwatch.core.model import Absent, Bytes
from memwatch.core.pressure.inputs import DriverErrors, PressureInputs
from memwatch.core.pressure.judge import PsiPoint, compute_stall_ratios, with_psi_point
from memwatch.core.pressure.signals import (
    Activity,
    ActivityPoint,
    StallRatios,
    TickChanges,
    find_signals,
    with_activity_point,
)
from memwatch.core.snapshot import Kernel, Level, MemoryPsi, PsiLine, Swap
from support.pressure_verdicts import GIB, MIB, psi, ram

ROOMY, SIZE = 7 * GIB, 10 * GIB
FAILED = sorted(FAILED_ALLOCATIONS)[0]


class Case(NamedTuple):
    """Evidence of one tick on a machine of `size` bytes, whose kernel counts reclaim. Rates are per second.

    `some`, `full`: fractions of the last 10 s with stalls. `errors`: failed allocations of a driver.
    """

    available: int = ROOMY
    size: int = SIZE
    some: float = 0.0
    full: float = 0.0
    seconds: float | None = None
    free: Bytes = Absent.NOT_AVAILABLE
    errors: int = 0
    activity: Activity = Activity()

    def signals(self) -> set[tuple[str, Level]]:
        target = ram(self.available, self.size)
        error = DriverErrors("gpu0", FAILED, self.errors, frozenset({"ram"}))
        inputs = PressureInputs(
            0.0,
            (target,),
            psi(0.0, 0.0),
            Swap(GIB, GIB),
            fragmented_nodes=(0,),
            driver_errors=(error,),
            free_bytes=self.free,
        )
        recent = {("gpu0", FAILED): self.errors} if self.errors else {}
        activity = replace(self.activity, errors=recent, is_reclaim_counted=True)
        changes = TickChanges(StallRatios(self.some, self.full), activity=activity)
        return {(one.name, one.level) for one in find_signals(target, self.seconds, inputs, changes)}


def grows(compact_fails: float = 9.0, growth: int = GIB) -> Activity:
    return Activity(compact_fails=compact_fails, compact_stalls=9.0, device_growth_bytes=growth, swapped_pages=0.0)


def at_work(
    allocstalls: float = 0.0,
    refaults: float = 0.0,
    scanned: float = 0.0,
    swapped: float = 0.0,
    evicted: float = 0.0,
    fall: int = 0,
) -> Activity:
    return Activity(
        allocstalls,
        scanned_pages=scanned,
        refaults=refaults,
        swapped_pages=swapped,
        free_fall_bytes=fall,
        evicted_ratio=evicted,
    )


SHORT = 2 * GIB  # 80 % used
THREE_HUNDREDTHS, HUNDREDTH, THOUSANDTH = SIZE * 3 // 100, SIZE // 100 + 1, SIZE // 1000 + 1
DRIVER, SWAP = ("driver", Level.HIGH), ("swap", Level.CRITICAL)
CASES = {
    "floor of 256 MiB": (("floor", Level.CRITICAL), Case(256 * MIB - 1), Case(256 * MIB)),
    "floor of 10 %": (("floor", Level.CRITICAL), Case(GIB // 10, GIB), Case(GIB // 10 + 1, GIB)),
    "floor of 512 MiB": (("floor", Level.HIGH), Case(512 * MIB - 1), Case(512 * MIB)),
    "floor of 20 %": (("floor", Level.HIGH), Case(GIB // 5, GIB), Case(GIB // 5 + 1, GIB)),
    "some 5 %": (("psi", Level.MEDIUM), Case(some=0.05), Case(some=0.0499)),
    "some 20 %": (("psi", Level.HIGH), Case(SHORT, some=0.20), Case(SHORT, some=0.1999)),
    "some, 80 % used": (("psi", Level.HIGH), Case(SHORT, some=0.20), Case(SHORT + 1, some=0.20)),
    "full 5 %": (("psi", Level.MEDIUM), Case(full=0.05), Case(full=0.0499)),
    "full 5 %, short": (("psi", Level.HIGH), Case(SHORT, full=0.05), Case(SHORT, full=0.0499)),
    "full, 80 % used": (("psi", Level.HIGH), Case(SHORT, full=0.05), Case(SHORT + 1, full=0.05)),
    "full 20 %": (("psi_full", Level.CRITICAL), Case(SHORT, full=0.20), Case(SHORT, full=0.1999)),
    "full, 60 % used": (
        ("psi_full", Level.CRITICAL),
        Case(4 * GIB, full=0.20, activity=at_work(1.0)),
        Case(4 * GIB + 1, full=0.20, activity=at_work(1.0)),
    ),
    "machine reclaims, allocations": (
        ("psi", Level.HIGH),
        Case(full=0.05, activity=at_work(1.0)),
        Case(full=0.05, activity=at_work(0.99)),
    ),
    "machine reclaims, pages": (
        ("psi", Level.HIGH),
        Case(full=0.05, activity=at_work(scanned=32)),
        Case(full=0.05, activity=at_work(scanned=31.9)),
    ),
    "livelock, full 20 %": (
        ("livelock", Level.CRITICAL),
        Case(full=0.20, activity=at_work(20, 100)),
        Case(full=0.1999, activity=at_work(20, 100)),
    ),
    "livelock, allocations": (
        ("livelock", Level.CRITICAL),
        Case(full=0.20, activity=at_work(20, 100)),
        Case(full=0.20, activity=at_work(19.9, 100)),
    ),
    "livelock, refaults": (
        ("livelock", Level.CRITICAL),
        Case(full=0.20, activity=at_work(20, 100)),
        Case(full=0.20, activity=at_work(20, 99)),
    ),
    "evicted 20 %": (
        ("evicted", Level.HIGH),
        Case(activity=at_work(evicted=0.20)),
        Case(activity=at_work(evicted=0.1999)),
    ),
    "evicted while short": (
        ("evicted", Level.CRITICAL),
        Case(activity=at_work(1.0, evicted=0.20)),
        Case(activity=at_work(0.99, evicted=0.20)),
    ),
    "full in half an hour": (("ttf", Level.MEDIUM), Case(seconds=1799.0), Case(seconds=1800.0)),
    "swap, use": (SWAP, Case(GIB - 1, activity=at_work(swapped=10)), Case(GIB, activity=at_work(swapped=10))),
    "swap, pages": (
        SWAP,
        Case(GIB // 2, activity=at_work(swapped=10)),
        Case(GIB // 2, activity=at_work(swapped=9.9)),
    ),
    "compaction fails": (
        ("fragmentation", Level.HIGH),
        Case(some=0.02, activity=grows(5.0)),
        Case(some=0.02, activity=grows(4.9)),
    ),
    "compaction, some 2 %": (
        ("fragmentation", Level.HIGH),
        Case(some=0.02, activity=grows()),
        Case(some=0.0199, activity=grows()),
    ),
    "compaction, growth": (
        ("fragmentation", Level.HIGH),
        Case(some=0.02, activity=grows(growth=THOUSANDTH)),
        Case(some=0.02, activity=grows(growth=THOUSANDTH - 1)),
    ),
    "driver, allocations": (
        DRIVER,
        Case(errors=1, activity=at_work(1.0)),
        Case(errors=1, activity=at_work(0.99)),
    ),
    "driver, errors": (
        DRIVER,
        Case(free=0, errors=3, activity=at_work(fall=GIB)),
        Case(free=0, errors=2, activity=at_work(fall=GIB)),
    ),
    "driver, free": (
        DRIVER,
        Case(free=THREE_HUNDREDTHS, errors=3, activity=at_work(fall=GIB)),
        Case(free=THREE_HUNDREDTHS + 1, errors=3, activity=at_work(fall=GIB)),
    ),
    "driver, fall": (
        DRIVER,
        Case(free=0, errors=3, activity=at_work(fall=HUNDREDTH)),
        Case(free=0, errors=3, activity=at_work(fall=HUNDREDTH - 1)),
    ),
}


@pytest.mark.parametrize(("signal", "inside", "outside"), CASES.values(), ids=CASES)
def test_signal_begins_at_its_threshold(signal: tuple[str, Level], inside: Case, outside: Case) -> None:
    assert signal in inside.signals()
    assert signal not in outside.signals()


@pytest.mark.parametrize(("seconds", "is_kept"), [(1.49, False), (1.5, True)])
def test_same_reading_makes_another_point_after_a_while(seconds: float, is_kept: bool) -> None:
    """The counters are read once a second, and judged up to ten times."""
    first = ActivityPoint(0.0, Kernel(allocstall_total=7))
    new = ActivityPoint(1.0, Kernel(allocstall_total=7))
    same = replace(first, at=seconds)

    assert with_activity_point((first,), new) == (first, new)
    assert with_activity_point((first,), same) == ((first, same) if is_kept else (first,))


@pytest.mark.parametrize(("seconds", "is_kept"), [(9.99, True), (10.0, False)])
def test_counters_are_compared_over_ten_seconds(seconds: float, is_kept: bool) -> None:
    """With the last reading that is as old as that, or older."""
    first, second, third = (
        ActivityPoint(at, Kernel(allocstall_total=count)) for count, at in enumerate((0.0, 1.0, 1.0 + seconds))
    )

    assert with_activity_point((first, second), third) == ((first,) if is_kept else ()) + (second, third)


@pytest.mark.parametrize(("seconds", "is_kept"), [(9.99, True), (10.0, False)])
def test_stalls_are_counted_over_ten_seconds(seconds: float, is_kept: bool) -> None:
    first, second = PsiPoint(0.0, 0.0, 0.0), PsiPoint(1.0, 0.0, 0.0)
    points = with_psi_point((first, second), 1.0 + seconds, psi(0.0, 0.0))

    assert points[:-1] == ((first, second) if is_kept else (second,))


@pytest.mark.parametrize(("seconds", "some"), [(9.49, 0.7), (9.5, 0.1)])
def test_average_of_the_kernel_counts_until_the_window_is_full(seconds: float, some: float) -> None:
    """Of 1 s of stalls that were read, and an average of 70 %."""
    points = PsiPoint(0.0, 0.0, 0.0), PsiPoint(seconds, 1.0, 0.0)
    average = MemoryPsi(PsiLine(0.7, 0.0, 0.0, 1.0), PsiLine(0.0, 0.0, 0.0, 0.0))

    assert compute_stall_ratios(points, average) == StallRatios(some, 0.0)
