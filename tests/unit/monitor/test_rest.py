"""Pace of a full machine at rest: few readings, and a collapse is critical as early as with ten a second."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.wakeups import Wake
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.reading.schedule import FAST_SECONDS
from memwatch.core.snapshot import Level, Snapshot
from memwatch_monitor import pacing
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.pacing import (
    MAX_FALL_RATIO,
    MIN_MAX_FALL_BYTES,
    RESTLESS_SECONDS,
    TRIGGER_SECONDS,
    seconds_at_rest,
)
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor, listen
from support.trace_score import load_all

SPARK = 121.7
# A machine whose memory has not moved for longer than this is read as seldom as at rest.
REST_SECONDS = RESTLESS_SECONDS + 2
NO_TRIGGER = math.inf


@pytest.mark.parametrize(
    ("size", "used", "free", "seconds"),
    [
        (SPARK, 0.64, NO_TRIGGER, 1.0),
        (SPARK, 0.75, NO_TRIGGER, 1.0),
        (SPARK, 0.85, NO_TRIGGER, 1 / 2),
        (SPARK, 0.92, NO_TRIGGER, 1 / 3),
        (SPARK, 0.96, NO_TRIGGER, 1 / 6),
        (SPARK, 0.98, NO_TRIGGER, 0.1),
        (SPARK, 1.0, NO_TRIGGER, 0.1),
        (SPARK, 0.85, 7.6, 1.0),  # 1.4 GiB go until the trigger's event: half of 18.3 GiB are left at it
        (SPARK, 0.85, 7.8, 1 / 2),
        (SPARK, 0.92, 3.4, 1.0),
        (SPARK, 0.92, 3.5, 1 / 3),
        (SPARK, 0.98, 0.1, 0.1),  # the event comes too late
        (866.0, 0.92, NO_TRIGGER, 1 / 3),  # the rate is a part of the size
        (62.0, 0.92, NO_TRIGGER, 1 / 3),
        (8.0, 0.64, NO_TRIGGER, 1 / 2),  # 2 GiB/s, a quarter of its size
        (8.0, 0.85, NO_TRIGGER, 1 / 4),
        (1.0, 0.64, NO_TRIGGER, 0.1),
    ],
)
def test_seconds_at_rest_leave_half_of_the_available_memory(
    size: float, used: float, free: float, seconds: float
) -> None:
    found = seconds_at_rest(size * GIB, round((1 - used) * size * GIB), free * GIB)

    assert found == pytest.approx(seconds)


def test_no_recorded_machine_fell_faster_than_the_bound() -> None:
    """On all traces, in half a second. The fastest is at the bound: 14.2 GiB/s of a DGX Spark."""
    fastest = max(
        (before - after) / 0.5 / max(MAX_FALL_RATIO * trace.size, MIN_MAX_FALL_BYTES)
        for trace in load_all()
        if trace.has("available_bytes")
        for before, after in pairwise(
            [trace.value("available_bytes", step / 2) for step in range(int(2 * trace.header.seconds))]
        )
    )

    assert fastest == pytest.approx(1.0, abs=0.01)
    assert fastest <= 1.0


class Collapse:
    """The whole loop on a manual clock, with System RAM that falls `slope` GiB/s after a rest.

    `phase`: seconds of its first second of fall after a whole one. `free`: what goes without reclaim, in GiB; its
    end makes a trigger fire after `TRIGGER_SECONDS`. Infinity is no trigger.
    """

    def __init__(self, size: float, used: float, slope: float, phase: float = 0, free: float = NO_TRIGGER) -> None:
        self.wakeups: list[float] = []
        self.critical = math.inf
        self._clock = FakeClock()
        self._began, self._falls_at = self._clock.now, REST_SECONDS + phase
        self._size, self._start, self._slope = round(size * GIB), (1 - used) * size, slope
        fires_at = self._falls_at + free / slope + TRIGGER_SECONDS if slope else math.inf
        self._fires_at = round(fires_at, 6) if fires_at < math.inf else math.inf  # as `now` is
        self._free = free

    @property
    def now(self) -> float:
        return round(self._clock.now - self._began, 6)

    def available(self) -> int:
        return max(0, round((self._start - max(0.0, self.now - self._falls_at) * self._slope) * GIB))

    def run(self, seconds: float) -> Collapse:
        memory = Memory(self._size, self.available, self._free)
        sampler = Sampler([CollectorEntry("meminfo", lambda: memory, False)], self._clock)
        monitor = create_monitor(
            sampler,
            self._clock,
            MonitorRules(),
            Identity("spark-1", "boot-1"),
            self,
            sees_reclaim=lambda: self._free != NO_TRIGGER,
        )
        listen(monitor, self._note)
        self._ends = seconds
        monitor.run(threading.Event())
        return self

    def wait(self, seconds: float, stop: threading.Event) -> Wake:
        fires = self.now < self._fires_at <= self.now + seconds
        self._clock.now += self._fires_at - self.now if fires else max(0.0, seconds)
        self.wakeups.append(self.now)
        if self.now >= self._ends or (self._slope and self.critical < math.inf):
            stop.set()
        return Wake.STALL if fires else Wake.DUE

    def wake(self) -> None:
        raise AssertionError("nothing else wakes the loop")

    def _note(self, snapshot: Snapshot, _: object) -> None:
        if snapshot.pressure[0].level is Level.CRITICAL and self.critical == math.inf:
            self.critical = self.now - self._falls_at


class Memory(FakeCollector):
    """System RAM of which `free` GiB are free, or all that is available."""

    def __init__(self, size: int, available: Callable[[], int], free: float) -> None:
        super().__init__("meminfo")
        self._size, self._available, self._free, self._last = size, available, free, 0

    def collect(self) -> Findings:
        left = self._last = self._available()
        pool = replace(ram(self._size - left, self._size), free_bytes=round(min(left, self._free * GIB)))
        return Findings(pools=(pool,))

    def moved_bytes(self) -> int:
        return self._last - self._available()


@pytest.mark.parametrize(
    ("size", "used", "a_second"),
    [
        (SPARK, 0.40, 1),
        (SPARK, 0.64, 1),
        (SPARK, 0.85, 2),
        (SPARK, 0.92, 3),
        (SPARK, 0.985, 10),
        (866.0, 0.92, 3),
    ],
)
def test_full_machine_at_rest_wakes_up_by_its_use(size: float, used: float, a_second: int) -> None:
    """A DGX Spark that serves a model all day. Before, it was ten times a second from 60 % use."""
    loop = Collapse(size, used, 0.0).run(REST_SECONDS + 60)

    later = [at for at in loop.wakeups if at > REST_SECONDS]

    assert len(later) == pytest.approx(60 * a_second, abs=2)


@pytest.mark.parametrize(("used", "free"), [(0.64, 9.0), (0.85, 7.6), (0.92, 3.4)])
def test_trigger_that_reports_reclaim_needs_one_reading_a_second(used: float, free: float) -> None:
    """Page cache is what is available of a machine that has loaded a model from its disk."""
    loop = Collapse(SPARK, used, 0.0, free=free).run(REST_SECONDS + 60)

    later = [at for at in loop.wakeups if at > REST_SECONDS]

    assert len(later) == pytest.approx(60, abs=2)


@pytest.mark.parametrize(
    ("used", "slope", "free"),
    [
        (0.64, 2.0, NO_TRIGGER),
        (0.64, 14.2, NO_TRIGGER),
        (0.85, 2.0, NO_TRIGGER),
        (0.85, 14.2, NO_TRIGGER),
        (0.92, 2.0, NO_TRIGGER),
        (0.92, 14.2, NO_TRIGGER),
        (0.85, 2.0, 7.6),
        (0.85, 14.2, 7.6),
        (0.92, 2.0, 3.4),
        (0.92, 14.2, 3.4),
    ],
)
@pytest.mark.parametrize("phase", [0.02, 0.35, 0.68, 0.99])
def test_collapse_from_rest_is_critical_as_early_as_with_ten_readings_a_second(
    monkeypatch: pytest.MonkeyPatch, used: float, slope: float, free: float, phase: float
) -> None:
    """At most one fast interval later, at up to the fastest recorded rate."""
    seconds = REST_SECONDS + 2 + (1 - used) * SPARK / slope
    found = Collapse(SPARK, used, slope, phase, free).run(seconds).critical
    monkeypatch.setattr(pacing, "seconds_at_rest", lambda *_: FAST_SECONDS)
    before = Collapse(SPARK, used, slope, phase, free).run(seconds).critical

    print(f"{used:.0%} at {slope} GiB/s, phase {phase}, free {free}: {before:.2f} s before, {found:.2f} s now")
    assert before < math.inf
    assert found <= before + FAST_SECONDS
