"""Test that the loop stores, publishes and continues, whatever clocks, collectors and listeners do."""

from __future__ import annotations

import logging
import re
import threading

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import DriverError, KernelLog, OomKill
from memwatch.core.linux.files import ParseError
from memwatch.core.model import Process
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Kernel, Level, ProcessScan, Snapshot
from memwatch.reporting.history.notable_ticks import NotableTick, NotableTicks, unpack
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import AlertRules
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.loop import Monitor
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor, history, listen

QUICK = MonitorRules(interval_seconds=0.01)


def monitor_of(collector: FakeCollector, clock: FakeClock, rules: MonitorRules | None = None) -> Monitor:
    sampler = Sampler([CollectorEntry(collector.name, lambda: collector, False)], clock)
    return create_monitor(sampler, clock, rules or MonitorRules(), Identity("spark-1", "boot-1"))


def calm() -> FakeCollector:
    return FakeCollector("meminfo", findings=Findings(pools=(ram(GIB),)))


def kinds(monitor: Monitor) -> list[str]:
    return [event.kind for event in monitor.events.since(0)]


def texts_of(kind: str, *findings: Findings) -> list[str]:
    """Return the events of a kind after ticks with these findings, one second apart."""
    memory, clock = calm(), FakeClock()
    monitor = monitor_of(memory, clock)
    for found in findings:
        memory.findings = found
        monitor.tick()
        clock.now += 1.0
    return [event.text for event in monitor.events.since(0) if event.kind == kind]


def test_tick_is_gathered_judged_stored_and_published() -> None:
    """One call, and `latest` has everything that readers need."""
    memory, clock = calm(), FakeClock()
    memory.findings = Findings(pools=(ram(62 * GIB),))
    received: list[Snapshot] = []
    monitor = monitor_of(memory, clock)
    listen(monitor, lambda snapshot, _: received.append(snapshot))

    snapshot = monitor.tick()

    assert monitor.latest is snapshot is received[0]
    assert snapshot.pressure[0].level is Level.CRITICAL
    assert snapshot.worst_level is Level.CRITICAL
    assert history(monitor).tiers.since("pool.ram.used_bytes", 0.0) == [(clock.boottime(), 62.0 * GIB)]
    assert kinds(monitor) == ["started", "level"]


def test_suspend_is_a_gap_and_an_event() -> None:
    """One hour of suspend is an event, and a gap in the line."""
    clock = FakeClock()
    monitor = monitor_of(calm(), clock)
    monitor.tick()

    clock.now += 1.0
    clock.slept += 3600.0
    monitor.tick()

    assert kinds(monitor) == ["started", "suspend"]
    assert monitor.events.since(0)[-1].text == "machine suspended for 3600 s"
    buckets = history(monitor).tiers.query("pool.ram.used_bytes", 0.0, clock.boottime(), 2000)
    assert [bucket.average is None for bucket in buckets] == [False, True, False]


def test_set_clock_moves_no_history() -> None:
    """Two days forward: past values are shown relative to the new clock, in the same order."""
    clock = FakeClock()
    monitor = monitor_of(calm(), clock)
    monitor.tick()
    clock.now += 1.0
    clock.wall_offset += 172800.0

    monitor.tick()

    (first, _), (second, _) = history(monitor).tiers.since("pool.ram.used_bytes", 0.0)
    assert monitor.events.since(0)[-1].text == "wall clock set forward by 172800.0 s"
    assert monitor.to_wall(second) == clock.wall()
    assert monitor.to_wall(first) == clock.wall() - 1.0
    assert monitor.to_boottime(monitor.to_wall(first)) == pytest.approx(first)


def test_oom_kill_is_one_event() -> None:
    """The machine may look healthy one second later; the event stays, and says what is known of its scope."""
    ticks = [Findings(pools=(ram(GIB),), kernel=Kernel(oom_kills_total=kills)) for kills in (3, 3, 5, 5)]

    assert texts_of("oom_kill", *ticks) == [
        "OOM killer: killed 2 processes, of the machine or at a cgroup's limit: no log and no counter shows which"
    ]


def test_level_change_is_an_event_with_its_reason() -> None:
    """The event log is readable text."""
    assert texts_of("level", Findings(pools=(ram(GIB),)), Findings(pools=(ram(56 * GIB),))) == [
        "System RAM: OK → high (87.5% used; 8.0 GiB of 64.0 GiB available)"
    ]


def test_level_event_names_the_process_that_grew() -> None:
    """Its growth in ten minutes, from high on. A level that falls has no culprit."""
    levels = texts_of(
        "level",
        *(
            Findings(
                pools=(ram(used * GIB),),
                processes=(Process(51210, 0.0, "train.py", used * GIB, used * GIB, "rss"),),
            )
            for used in (*range(1, 62), *[5] * 80)
        ),
    )

    risen = [text for text in levels if "→ high" in text or "→ critical" in text][:2]
    assert all(re.search(r"; train\.py \(51210\) grew by \d\d\.0 GiB\)$", text) for text in risen)
    assert len(risen) == 2
    assert not any("grew by" in text for text in levels if "→ OK" in text or "→ medium" in text)


def test_level_event_of_system_ram_does_not_name_growth_on_a_gpu() -> None:
    """The footprint of the process contains its memory on a discrete GPU."""
    growing = Process(51210, 0.0, "train.py", GIB, GIB, "rss")
    held = (
        replace(growing, footprint_bytes=GIB + used * GIB, device_bytes={"gpu0.vram": used * GIB})
        for used in range(1, 62)
    )

    levels = texts_of(
        "level", *(Findings(pools=(ram(used * GIB),), processes=(one,)) for used, one in enumerate(held, 1))
    )

    assert any("→ critical" in text for text in levels)
    assert not any("grew by" in text for text in levels)


def test_killed_process_is_named_once() -> None:
    """Counted in one file and named in another one second later: one event, with the name."""
    kill = OomKill(1, 4242, "train", 64 << 20, "machine")
    ticks = [
        Findings(pools=(ram(GIB),), kernel=Kernel(oom_kills_total=counted), kernel_log=KernelLog(kills=kills))
        for counted, kills in ((3, ()), (4, ()), (4, (kill,)), (4, (kill,)), (5, (kill,)), *[(5, (kill,))] * 3)
    ]

    assert texts_of("oom_kill", *ticks) == [
        "OOM killer: killed train (4242), 64.0 MiB anonymous",
        "OOM killer: killed 1 process, of the machine or at a cgroup's limit: no log and no counter shows which",
    ]


def test_repeated_driver_error_is_reported_once_a_minute() -> None:
    """The first error is reported at once, thousands of later ones by their number."""
    error = DriverError("nvidia", "", "nv_err_no_memory", 100, 0.0, "NVRM: no memory")
    logs = [KernelLog(), *(KernelLog(driver_errors=(replace(error, count=100 * at),)) for at in range(1, 70))]

    assert texts_of("driver", *(Findings(pools=(ram(GIB),), kernel_log=log) for log in logs)) == [
        "the driver of nvidia reported out of memory (NV_ERR_NO_MEMORY), 100 times: NVRM: no memory",
        "the driver of nvidia reported out of memory (NV_ERR_NO_MEMORY), 6000 times: NVRM: no memory",
    ]


def test_missing_value_for_a_tick_changes_no_level() -> None:
    """A collector that misses one answer causes no level events."""
    full = Findings(pools=(ram(62 * GIB),))

    assert texts_of("level", full, Findings(), full) == [
        "System RAM: OK → critical (96.9% used; 2.0 GiB of 64.0 GiB available)"
    ]


def test_failure_and_recovery_of_a_collector_are_two_events() -> None:
    """One event when it fails and one when it recovers; none on the ticks between."""
    memory, clock = calm(), FakeClock()
    monitor = monitor_of(memory, clock)
    for error in (None, ParseError("meminfo is empty"), ParseError("meminfo is empty"), None):
        memory.error = error
        monitor.tick()
        clock.now += 1.0

    assert [event.text for event in monitor.events.since(0) if event.kind == "collector"] == [
        "collector meminfo is failing: meminfo is empty",
        "collector meminfo recovered",
    ]


def test_reload_changes_interval_and_thresholds_and_keeps_history() -> None:
    """From the next tick on; the ring is rebuilt with its contents."""
    memory, clock = calm(), FakeClock()
    monitor = monitor_of(memory, clock)
    monitor.tick()

    rules = MonitorRules(interval_seconds=0.5)
    strict = replace(rules.pressure, thresholds=replace(rules.pressure.thresholds, medium=0.001, high=0.002))
    monitor.reconfigure(replace(rules, pressure=strict))
    clock.now += 1.0
    snapshot = monitor.tick()

    assert snapshot.interval_seconds == 0.5
    assert snapshot.pressure[0].level is Level.HIGH
    assert len(history(monitor).tiers) == 2


def test_target_that_comes_and_goes_is_no_level_change() -> None:
    """A GPU that falls off the bus and returns unchanged takes no place of a notable tick."""
    memory, clock = calm(), FakeClock()
    monitor = monitor_of(memory, clock)
    for vram in ([GIB], [], [GIB], [], [63.9 * GIB], [], [63.9 * GIB], [GIB]):
        gpu = [ram(int(used), pool_id="vram0") for used in vram]
        memory.findings = Findings(pools=(ram(GIB), *gpu))
        monitor.tick()
        clock.now += 1.0

    kept = [unpack(one.data) for one in history(monitor).ticks.between(0.0, clock.now, 100)]

    assert [one.seq for one in kept] == [1, 5]
    assert [one.worst.word for one in kept if one.worst] == ["low", "critical"]


def test_failing_listener_is_logged_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The loop continues; a repeated error is logged once, and so is its end."""
    clock, stop = FakeClock(), threading.Event()
    monitor = monitor_of(calm(), clock, QUICK)
    ticks: list[int] = []

    def broken(snapshot: Snapshot, _notices: tuple[Notification, ...]) -> None:
        ticks.append(snapshot.seq)
        clock.now += 0.0099
        if len(ticks) == 30:
            stop.set()
        if len(ticks) < 20:
            raise ValueError("no disk")

    listen(monitor, broken)
    with caplog.at_level(logging.WARNING):
        monitor.run(stop)

    assert ticks == list(range(1, 31))
    assert caplog.messages == ["listener failed: ValueError: no disk", "listener works again"]


def test_memory_error_costs_one_tick(caplog: pytest.LogCaptureFixture) -> None:
    """Running out of memory is the daemon's purpose: it continues."""
    clock, stop = FakeClock(), threading.Event()
    monitor = monitor_of(calm(), clock, QUICK)
    ticks: list[int] = []

    def hungry(snapshot: Snapshot, _notices: tuple[Notification, ...]) -> None:
        ticks.append(snapshot.seq)
        clock.now += 0.0099
        if len(ticks) == 3:
            stop.set()
        if len(ticks) == 1:
            raise MemoryError

    listen(monitor, hungry)
    monitor.run(stop)

    assert ticks == [1, 2, 3]
    assert "listener failed: out of memory" in caplog.messages


def test_tick_that_cannot_be_stored_is_still_published() -> None:
    """Without memory to store a tick, clients and listeners still get it."""

    class Full(NotableTicks):
        def add(self, tick: NotableTick) -> None:
            raise MemoryError(tick)

    received: list[int] = []
    monitor = monitor_of(calm(), FakeClock())
    history(monitor).ticks = Full()
    listen(monitor, lambda snapshot, _: received.append(snapshot.seq))

    monitor.tick()

    assert monitor.latest is not None
    assert received == [monitor.latest.seq] == [1]


def test_notice_is_sent_again_after_a_memory_error() -> None:
    """If memory runs out while a notice is delivered, the next tick delivers it once, under the same id."""
    memory, clock = calm(), FakeClock()
    memory.findings = Findings(pools=(ram(62 * GIB),))
    monitor = monitor_of(memory, clock, MonitorRules(alerts=AlertRules(pending_seconds=0)))
    tried: list[tuple[Notification, ...]] = []

    def take(_: Snapshot, notices: tuple[Notification, ...]) -> None:
        tried.append(notices)
        if len(tried) == 1:
            raise MemoryError

    listen(monitor, take)
    for _ in range(3):
        monitor.tick()
        clock.now += 1.0

    assert [len(notifications) for notifications in tried] == [1, 1, 0]
    assert tried[0] == tried[1]


def test_failing_listener_does_not_repeat_notices() -> None:
    """Notices delivered before a later listener fails are not delivered again by the next tick."""
    memory, clock = calm(), FakeClock()
    memory.findings = Findings(pools=(ram(62 * GIB),))
    monitor = monitor_of(memory, clock, MonitorRules(alerts=AlertRules(pending_seconds=0)))
    delivered: list[int] = []

    def fail(_snapshot: Snapshot, _notices: tuple[Notification, ...]) -> None:
        raise OSError("no room for the recording")

    listen(monitor, lambda _, notices: delivered.append(len(notices)))
    listen(monitor, fail)
    for _ in range(3):
        clock.now += 1.0
        monitor.tick()

    assert delivered == [1, 0, 0]


def test_memory_that_does_not_come_back_is_in_the_snapshot_and_the_events() -> None:
    """It is still used 30 s after its process ended; an event tells when it came back, and how long that took."""
    clock, found = FakeClock(), FakeCollector("meminfo")
    monitor = monitor_of(found, clock)

    def run(rest: int, held: int, seconds: int) -> Snapshot:
        pool = replace(ram(60 * GIB), unattributed_bytes=rest)
        process = Process(50, 1.0, "python3", GIB, GIB, "rss", device_bytes={"ram": held})
        scan, processes = ProcessScan(1, 0), (process,) if held else ()
        found.findings = Findings(pools=(pool,), processes=processes, process_scan=scan)
        for _ in range(seconds):
            clock.now += 1.0
            snapshot = monitor.tick()
        return snapshot

    run(GIB, 40 * GIB, 3)
    early = run(41 * GIB, 0, 25)
    late = run(41 * GIB, 0, 175)
    after = run(GIB, 0, 1)

    assert (early.not_returned, after.not_returned) == ((), ())
    assert [one.held_bytes for one in late.not_returned] == [40 * GIB]
    assert [(event.kind, event.text) for event in monitor.events.since(0) if event.kind.startswith("memory")] == [
        ("memory.not_returned", "40.0 GiB of System RAM did not come back after python3 (PID 50) ended"),
        ("memory.returned", "40.0 GiB of System RAM came back 3 min 20 s after python3 (PID 50) ended"),
    ]
