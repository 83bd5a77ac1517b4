"""Test that a reading without a daemon composes the snapshot that the first ticks of a daemon have."""

from __future__ import annotations

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.machine import MachineReader, MemoryReader
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Kernel, Level, Snapshot
from memwatch_monitor.feature import MonitorRules
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor

IDENTITY = Identity("spark-1", "boot-1")


def sampler_of(collector: FakeCollector, clock: FakeClock) -> Sampler:
    return Sampler([CollectorEntry(collector.name, lambda: collector, False)], clock)


def reader_of(collector: FakeCollector, clock: FakeClock) -> MachineReader:
    return MachineReader(sampler_of(collector, clock), clock, IDENTITY, PressureRules(), 1.0)


def shared(snapshot: Snapshot) -> dict[str, object]:
    """Return all fields but the cost of the process, and the lists that only a daemon has."""
    only_daemon = {"self_usage", "left_out"}
    return {name: getattr(snapshot, name) for name in Snapshot.__struct_fields__ if name not in only_daemon}


def test_reading_equals_the_tick_of_a_daemon() -> None:
    """Also the second one, whose levels and kills depend on the first."""
    clock, collector = FakeClock(), FakeCollector("meminfo")
    reader = reader_of(collector, clock)
    monitor = create_monitor(sampler_of(collector, clock), clock, MonitorRules(), IDENTITY)
    levels = []
    for used, kills in ((62, 4), (8, 5)):
        collector.findings = Findings(pools=(ram(used * GIB),), kernel=Kernel(oom_kills_total=kills))
        tick, reading = monitor.tick(), reader.read()
        assert shared(reading) == shared(tick)
        levels.append(reading.pressure[0].level)
        clock.now += 1.0

    assert levels[0] is Level.CRITICAL
    assert levels[1] > Level.LOW


def test_reading_of_memory_has_the_same_pools_and_no_levels() -> None:
    clock, collector = FakeClock(), FakeCollector("meminfo", findings=Findings(pools=(ram(62 * GIB),)))
    memory, machine = MemoryReader(sampler_of(collector, clock), clock, IDENTITY), reader_of(collector, clock)
    reading, judged = memory.read(), machine.read()

    assert (reading.pools, reading.collectors, reading.host) == (judged.pools, judged.collectors, judged.host)
    assert (reading.pressure, judged.pressure[0].level) == ((), Level.CRITICAL)
    assert [reading.seq, memory.read().seq] == [1, 2]


def test_reader_closes_the_files_of_its_collectors() -> None:
    clock, collector = FakeClock(), FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))
    reader = reader_of(collector, clock)
    reader.read()
    reader.close()

    assert collector.closed
