"""Times in queries of the history."""

from __future__ import annotations

import pytest

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_web.api.history import series_json
from memwatch_web.api.history_parameters import instant, span
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor, history

NOON = 1_769_860_800.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-31T12:00:00Z", 0.0),
        ("2026-01-31T13:00:00+01:00", 0.0),
        ("2026-01-31T12:00:00.5Z", 0.5),
        ("2026-01-31T12:00:00.25 00:00", 0.25),  # a plus sign that was not encoded
        ("2026-01-31T12:00:00.123Z", 0.123),
        ("2026-01-31T12:00:00.123456789Z", 0.123456),
    ],
)
def test_time_of_rfc_3339_is_parsed_with_any_fraction(text: str, seconds: float) -> None:
    assert instant("from", text, 0.0) == pytest.approx(NOON + seconds, abs=1e-6)


class JitteryClock(FakeClock):
    """Each reading of the wall clock comes 5 µs after or before that of the boot time."""

    reads: int = 0

    def wall(self) -> float:
        self.reads += 1
        return super().wall() + (5e-6 if self.reads % 2 else -5e-6)


@pytest.mark.parametrize("reads", [0, 1])
def test_query_until_now_has_the_latest_row(reads: int) -> None:
    clock = JitteryClock()
    memory = FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    sampler = Sampler([CollectorEntry(memory.name, lambda: memory, False)], clock)
    monitor = create_monitor(sampler, clock, MonitorRules(), Identity("spark-1", "boot-1"))
    monitor.tick()
    clock.now += 1.0
    monitor.tick()
    clock.reads = reads

    start, end = span(monitor, None, None, 60.0)
    found = series_json(history(monitor).series, monitor.to_wall(0.0), "pool.ram.used_bytes", start, end, 600)

    assert len(found.max) == 2
