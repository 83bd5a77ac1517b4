"""Test pressure in the whole loop: few events, all readable, and no spike lost between two ticks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.model import Absent
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.feature import MonitorRules
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor, history, listen


class Machine:
    """System RAM used as a function of time, and a loop that reads it by a manual clock."""

    def __init__(self, used: Callable[[float], float], size: int = 64 * GIB) -> None:
        self.clock = FakeClock()
        self.memory = FakeCollector("meminfo")
        sampler = Sampler([CollectorEntry("meminfo", lambda: self.memory, False)], self.clock)
        self.monitor = create_monitor(sampler, self.clock, MonitorRules(), Identity("spark-1", "boot-1"))
        self.snapshots: list[Snapshot] = []
        self.notices: list[Notification] = []
        self.published_at: list[float] = []
        listen(self.monitor, self._record)
        self._started = self.clock.now
        self._used, self._size = used, size

    def run(self, seconds: float, every: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until - 1e-6:
            self.memory.findings = Findings(pools=(ram(int(self._used(self.seconds) * self._size), self._size),))
            self.snapshots.append(self.monitor.tick())
            self.clock.now += every

    @property
    def seconds(self) -> float:
        return self.clock.now - self._started

    def events(self, kind: str) -> list[str]:
        return [event.text for event in self.monitor.events.since(0) if event.kind == kind]

    def _record(self, snapshot: Snapshot, notices: tuple[Notification, ...]) -> None:
        self.published_at.append(snapshot.monotonic)
        self.notices += notices


def sawtooth(seconds: float) -> float:
    phase = seconds % 4.0
    return 0.78 + 0.02 * (phase if phase <= 2 else 4 - phase)


def test_ten_minutes_of_sawtooth_are_one_level_change() -> None:
    """78 to 82 % every four seconds: the first level, one change, and no notice."""
    machine = Machine(sawtooth)

    machine.run(600, 0.2)

    changes = machine.events("level")
    assert len(changes) == 2
    assert changes[0] == "System RAM: OK → medium (78.0% used; 14.1 GiB of 64.0 GiB available)"
    assert changes[1].startswith("System RAM: medium → high (80.")
    assert machine.notices == []


def test_level_change_names_reasons_and_values() -> None:
    """The event has the reason, the available memory and the forecast."""
    machine = Machine(lambda seconds: min(0.99, 0.5 + max(0.0, seconds - 10) * 0.02))

    machine.run(33, 0.1)

    last = machine.events("level")[-1]
    assert "high → critical (" in last
    assert "% used; full in about " in last
    assert last.endswith("of 64.0 GiB available)")


def test_forecast_is_stored_and_ends_with_the_growth() -> None:
    """Time to full is in the history; it ends when growth stops, and the reason is marked as past."""
    machine = Machine(lambda seconds: min(0.94, 0.7 + max(0.0, seconds - 10) * 0.01))

    machine.run(50, 1.0)

    forecasts = history(machine.monitor).tiers.since("pressure.ram.seconds_to_full", 0.0)
    last = machine.snapshots[-1].pressure[0]
    assert 2 <= len(forecasts) < 10
    assert last.seconds_to_full is Absent.NOT_AVAILABLE
    assert [
        reason.text for reason in last.reasons if reason.signal == "ttf" and "s ago: full in about" in reason.text
    ]


def test_no_forecast_crosses_a_suspend() -> None:
    """Neither the rate before one hour of suspend nor the difference across it gives a time to full."""
    machine = Machine(lambda seconds: 0.74 + seconds * 0.009)
    machine.run(20, 1.0)
    before = machine.snapshots[-1].pressure[0]
    machine.clock.slept += 3600.0

    machine.run(4, 1.0)

    after = machine.snapshots[-1].pressure[0]
    assert isinstance(before.seconds_to_full, float)
    assert after.seconds_to_full is Absent.NOT_AVAILABLE
    assert "ttf" not in {reason.signal for reason in after.reasons}


def test_no_spike_is_lost_between_two_seconds() -> None:
    """The worst of ten ticks is kept in the history, which has one reading a second."""
    machine = Machine(lambda seconds: 0.95 if 5.25 < seconds < 5.45 else 0.65)

    machine.run(10, 0.1)

    ratios = [value for _, value in history(machine.monitor).tiers.since("pressure.ram.ratio", 0.0)]
    assert len(ratios) == pytest.approx(10, abs=2)
    assert max(ratios) == pytest.approx(0.95)


def test_listeners_are_called_once_a_second_and_on_each_change() -> None:
    """Ten ticks a second must not send ten pages a second."""
    machine = Machine(lambda seconds: 0.65 if seconds < 5.55 else 0.85)

    machine.run(10, 0.1)

    early = [one for one, after in pairwise(machine.published_at) if after - one < 0.75]
    assert len(machine.published_at) <= 13
    assert len(early) == 1


def test_loop_runs_faster_under_pressure() -> None:
    """From one tick a second to ten, as soon as memory is 60 % full."""
    machine, stop, slept = Machine(lambda _: 0.7), threading.Event(), []
    machine.memory.findings = Findings(pools=(ram(45 * GIB),))

    class Sleeper(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            slept.append(round(timeout or 0.0, 3))
            machine.clock.now += timeout or 0.0
            if len(slept) == 5:
                stop.set()
                self.set()
            return False

    machine.monitor.run(Sleeper())

    assert slept == [0.1] * 5
