"""Test that missed ticks are one event, whatever the loop waited for."""

from __future__ import annotations

import threading

import pytest

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.wakeups import Wake, Wakeups
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.loop import Monitor
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor, listen

QUICK = MonitorRules(interval_seconds=0.01)


def monitor_of(clock: FakeClock, rules: MonitorRules, trigger: Wakeups | None = None) -> Monitor:
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler([CollectorEntry("meminfo", lambda: memory, False)], clock)
    return create_monitor(sampler, clock, rules, Identity("spark-1", "boot-1"), trigger)


def test_pause_is_one_event_without_a_burst_of_ticks() -> None:
    """A machine that stalls for ten intervals gets one event and no burst of ticks."""
    clock, stop = FakeClock(), threading.Event()
    monitor = monitor_of(clock, QUICK)
    at: list[float] = []

    def stall(_snapshot: Snapshot, _notices: tuple[Notification, ...]) -> None:
        at.append(clock.now)
        clock.now += 0.1049 if len(at) == 2 else 0.0099
        if len(at) == 4:
            stop.set()

    listen(monitor, stall)
    monitor.run(stop)

    assert late_events(monitor) == ["10 samples missed: the machine was too busy"]
    assert len(at) == 4


def late_events(monitor: Monitor) -> list[str]:
    return [event.text for event in monitor.events.since(0) if event.kind == "late"]


def test_lasting_pauses_are_reported_once_a_minute() -> None:
    """A machine too busy for every other tick fills neither the log nor the list of events."""
    clock, stop = FakeClock(), threading.Event()
    monitor = monitor_of(clock, MonitorRules(interval_seconds=0.5))
    began, seen_at = clock.now, dict[int, float]()

    def be_busy(_snapshot: Snapshot, _notices: tuple[Notification, ...]) -> None:
        seen_at.setdefault(len(late_events(monitor)), clock.now - began)
        clock.now += 0.9999
        if clock.now > began + 130:
            stop.set()

    listen(monitor, be_busy)
    monitor.run(stop)

    first, second, third = late_events(monitor)
    assert first == "1 sample missed: the machine was too busy"
    assert second == third == "61 samples missed on 61 occasions: the machine was too busy"
    assert seen_at == pytest.approx({0: 0, 1: 1, 2: 62, 3: 123}, abs=0.1)


class Interrupted(Wakeups):
    """Waits on a manual clock. The second wait ends by an event, early or late."""

    def __init__(self, clock: FakeClock, wake: Wake, seconds: float) -> None:
        super().__init__()
        self.ends: list[float] = []
        self._clock, self._wake, self._seconds = clock, wake, seconds

    def wait(self, seconds: float, stop: threading.Event) -> Wake:
        is_second = len(self.ends) == 1
        self._clock.now += self._seconds if is_second else seconds
        self.ends.append(self._clock.now)
        if len(self.ends) == 4:
            stop.set()
        return self._wake if is_second else Wake.DUE


@pytest.mark.parametrize("wake", [Wake.NEWS, Wake.STALL])
def test_pause_that_ends_by_an_event_is_reported(wake: Wake) -> None:
    """The process was stopped, and meanwhile a kill was logged or tasks stalled."""
    clock = FakeClock()
    trigger = Interrupted(clock, wake, 5.2)
    monitor = monitor_of(clock, MonitorRules(), trigger)
    monitor.run(threading.Event())
    trigger.close()

    assert late_events(monitor) == ["4 samples missed: the machine was too busy"]


def test_event_before_the_next_tick_misses_none() -> None:
    """The tick comes at once, and the next one an interval later."""
    clock = FakeClock()
    trigger = Interrupted(clock, Wake.NEWS, 0.3)
    monitor = monitor_of(clock, MonitorRules(), trigger)
    monitor.run(threading.Event())
    trigger.close()

    assert late_events(monitor) == []
    assert trigger.ends == pytest.approx([1001.0, 1001.3, 1002.3, 1003.3])
