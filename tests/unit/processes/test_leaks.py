"""Test growth by process and suspected leaks: derived from readings, in bounded memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Process
from memwatch.core.processes.growth import GrowthTracker, LeakRules, LeakSuspect, find_suspect
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.processes import GrowthWatch
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import alerts, create_monitor

MIB = 1 << 20
HOUR = 3600.0
RULES = LeakRules()
UNIX = 1_700_000_000.0


def process(pid: int = 7, footprint: int = 0, start: float = UNIX - 1e6) -> Process:
    return Process(pid, start, f"p{pid}", footprint, footprint, "rss", unit=None, container=None)


def suspected(
    size_at: Callable[[float], float], seconds: float = HOUR, rules: LeakRules = RULES
) -> LeakSuspect | None:
    """Return the verdict on a process whose size is this function of time, read every two minutes."""
    readings = [(float(at), int(size_at(at))) for at in range(0, int(seconds) + 1, 120)]
    return find_suspect(process(), readings, rules)


def test_steady_growth_is_a_suspected_leak() -> None:
    """A GiB that grows by one MiB every ten seconds is suspected, with its size in each sixth of the hour."""
    found = suspected(lambda at: GIB + at / 10 * MIB)

    assert found is not None
    assert found.grown_bytes == pytest.approx(300 * MIB, rel=0.02)
    assert found.evidence.startswith("grew steadily by 300.0 MiB in 1 h: 1.0 GiB → 1.1 GiB → ")


@pytest.mark.parametrize(
    ("what", "size_at"),
    [
        ("a heap that is collected every ten minutes", lambda at: GIB + at * MIB / 10 + (at % 600) * MIB),
        ("a leak with noise", lambda at: GIB + at * MIB / 5 + 20 * MIB * math.sin(at)),
        ("a leak that slows down, and goes on", lambda at: GIB + 600 * MIB * (at / HOUR) ** 0.7),
    ],
)
def test_hidden_leaks_are_suspected(what: str, size_at: Callable[[float], float]) -> None:
    """A rise under a sawtooth, or under noise, shows in the minimum of each part."""
    assert suspected(size_at) is not None, what


@pytest.mark.parametrize(
    ("what", "size_at"),
    [
        ("it does not grow", lambda _: 5 * GIB),
        ("a model is loaded", lambda at: GIB + (60 * GIB if at > 1800 else 0)),
        ("a model is loaded slowly, then serves", lambda at: GIB + min(at, 900) * 60 * MIB),
        ("a cache fills and is full", lambda at: 10 * GIB * (1 - math.exp(-at / 300))),
        ("a saw without a rise", lambda at: GIB + (at % 600) * MIB),
        ("it shrinks", lambda at: 10 * GIB - at * MIB),
        ("it grows by too little", lambda at: GIB + at * MIB / 100),
        ("it grows by a hundredth of itself", lambda at: 60 * GIB + at * MIB / 6),
        ("it grew, and gave some back in the last minutes", lambda at: GIB + at * MIB - (at > 3000) * 2 * GIB),
    ],
)
def test_healthy_patterns_are_not_suspected(what: str, size_at: Callable[[float], float]) -> None:
    """Loading, filling and oscillating are normal for healthy programs."""
    assert suspected(size_at) is None, what


def test_no_suspect_before_the_window_is_over() -> None:
    """Half an hour of growth is not one hour of growth; with a window of half an hour it suffices."""
    assert suspected(lambda at: GIB + at * MIB, HOUR / 2) is None
    assert suspected(lambda at: GIB + at * MIB, HOUR / 2, LeakRules(HOUR / 2)) is not None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1 << 50)), min_size=1, max_size=60))
def test_arbitrary_readings_yield_a_verdict(readings: list[tuple[float, int]]) -> None:
    """Any readings yield a verdict, and a suspect grew by at least the minimum of the rule."""
    found = find_suspect(process(), sorted(readings), RULES)

    assert found is None or found.grown_bytes >= RULES.min_bytes


def grown_over(seconds: int, size_at: Callable[[float], float], rules: LeakRules = RULES) -> GrowthTracker:
    growth = GrowthTracker()
    for at in range(0, seconds + 1, 10):
        growth.add(float(at), [process(footprint=int(size_at(at)))], rules)
    return growth


def test_growth_over_each_window() -> None:
    """One MiB a second is 60, 600 and 3600 MiB in one minute, ten minutes and one hour."""
    growth = grown_over(2 * 3600, lambda at: at * MIB)

    windows = growth.growth_by_window(process())

    assert windows == {"60": 60 * MIB, "600": 600 * MIB, "3600": 3600 * MIB}


def test_incomplete_window_has_no_growth() -> None:
    """After five minutes the growth of one minute is known, that of ten is not; an unknown process has none."""
    growth = grown_over(300, lambda at: at * MIB)

    assert growth.growth_by_window(process()) == {
        "60": 60 * MIB,
        "600": Absent.NOT_AVAILABLE,
        "3600": Absent.NOT_AVAILABLE,
    }
    assert set(growth.growth_by_window(process(99)).values()) == {Absent.NOT_AVAILABLE}


def test_growth_since_any_time_of_the_last_hour() -> None:
    """Growth counts from the last reading before the moment; a process started later counts as a whole."""
    growth = GrowthTracker()
    for at in range(0, 1801, 10):
        old, young = process(1, 5 * GIB + at * MIB), process(2, 9 * GIB, start=UNIX + 1200)
        growth.add(float(at), [old, young] if at > 1200 else [old], RULES)

    first, second = growth.since(900.0, UNIX + 900)

    assert (first.process.pid, first.grown_bytes, first.whole) == (2, 9 * GIB, True)
    assert (first.from_boottime, first.to_boottime) == (1200.0, 1800.0)
    assert (second.process.pid, second.grown_bytes, second.whole) == (1, 900 * MIB, True)


def test_process_first_seen_later_is_marked_as_partial() -> None:
    """A process first listed later grew since then; it is not assumed to have started at zero."""
    growth = GrowthTracker()
    growth.add(500.0, [process(1, GIB)], RULES)
    growth.add(600.0, [process(1, 3 * GIB)], RULES)

    (grown,) = growth.since(100.0, UNIX)

    assert (grown.grown_bytes, grown.from_boottime, grown.whole) == (2 * GIB, 500.0, False)


def test_reused_pid_is_another_process() -> None:
    """A process with the pid of an earlier one has no growth from that one."""
    growth = GrowthTracker()
    growth.add(0.0, [process(1, GIB)], RULES)
    growth.add(60.0, [process(1, 8 * GIB, start=UNIX + 55)], RULES)

    (grown,) = growth.since(0.0, UNIX)

    assert (grown.from_bytes, grown.to_bytes) == (0, 8 * GIB)


def test_short_lived_processes_take_no_lasting_memory() -> None:
    """Of 20,000 processes listed once, only those of current interest are kept."""
    growth = GrowthTracker()
    tracemalloc.start()
    try:
        for at in range(400):
            growth.add(at * 10.0, [process(at * 50 + one + 1, GIB) for one in range(50)], RULES)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 1 << 20
    assert len(growth.since(0.0, UNIX)) == 50


def test_suspect_is_one_event() -> None:
    """A new suspect is an event; a lasting one is no further event; no alert fires."""
    clock = FakeClock()
    collector = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler([CollectorEntry("meminfo", lambda: collector, False)], clock)
    monitor = create_monitor(sampler, clock, MonitorRules(leaks=LeakRules(600.0)), Identity("spark-1", "boot-1"))
    for step in range(180):
        leaking = process(41, GIB + step * 10 * MIB)
        collector.findings = replace(collector.findings, processes=(leaking, process(42, 9 * GIB)))
        monitor.tick()
        clock.now += 10.0

    leak_events = [event for event in monitor.events.since(0) if event.kind == "leak"]
    (suspect,) = monitor.features.get(GrowthWatch).tracker.suspects()

    assert len(leak_events) == 1
    assert leak_events[0].text.startswith("suspected leak: p41 (PID 41) grew steadily by ")
    assert suspect.process.pid == 41
    assert not any(watch.firing for watch in alerts(monitor).states.values())


def test_wavering_suspect_is_one_event_a_window() -> None:
    """A process that is suspected, cleared and suspected again is one event, not one per change."""
    growth, events, size = GrowthTracker(), 0, GIB
    rules = LeakRules(600.0)
    verdicts = set()
    for step in range(240):
        size += 10 * MIB if step % 90 < 75 else 0
        events += len(growth.add(step * 10.0, [process(5, size)], rules))
        verdicts.add((step, bool(growth.suspects())))

    changes = sum((step - 1, not suspected) in verdicts for step, suspected in verdicts if suspected)
    assert changes >= 2
    assert events < changes


@pytest.mark.parametrize(
    ("rises", "is_leak"),
    [
        ((60, 60, 60, 50, 10), True),
        ((60, 60, 60, 51, 9), False),
        ((120, 40, 40, 30, 10), True),
        ((10, 40, 40, 30, 120), True),
        ((121, 40, 40, 29, 10), False),
        ((10, 40, 40, 29, 121), False),
        ((80, 80, 0, 40, 40), False),
    ],
)
def test_leak_grows_in_each_part_and_in_none_by_half(rises: tuple[int, ...], is_leak: bool) -> None:
    """A twenty-fourth of the growth in the last part, at most half of it in any: 10 and 120 of 240 MiB."""
    sizes = [GIB + sum(rises[:part]) * MIB for part in range(6)]
    readings = [(600.0 * part, size) for part, size in enumerate(sizes)] + [(HOUR, sizes[-1])]

    assert (find_suspect(process(), readings, RULES) is not None) is is_leak
