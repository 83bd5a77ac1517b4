"""Pacing near memory exhaustion: up to ten checks a second, and a tick when a check sees memory move."""

from __future__ import annotations

import math
import re
import shutil
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.collectors import meminfo
from memwatch.core.collectors.base import Collector, CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent, Bytes, Quality, Share, ShareKind
from memwatch.core.reading.collector_runner import moved_between
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Level, Pressure, Reason
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.pacing import MIN_MOVE_RATIO, RESTLESS_SECONDS, Pacing
from support.budget import within
from support.daemon_process import running_daemon
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor
from support.paths import MACHINES

# The simulated machine: 121.7 GiB, of which 63.6 % are used.
SIZE_KIB, AVAILABLE_KIB = 127_600_748, 46_466_008
MIN_KIB = math.ceil(SIZE_KIB * MIN_MOVE_RATIO)


class Machine:
    """A folder with a meminfo, a monitor that reads it, and a clock that advances when the monitor sleeps."""

    def __init__(self, folder: Path, rules: MonitorRules | None = None, limit: Collector | None = None) -> None:
        self.meminfo = folder / "meminfo"
        self.set_available(AVAILABLE_KIB)
        self.clock, self.ticks = FakeClock(), [0.0]
        entries = [CollectorEntry("meminfo", lambda: meminfo.Collector(Roots(procfs=folder), 4096), False)]
        if limit is not None:
            entries.append(CollectorEntry("cgroup", lambda: limit, True))
        self.sampler = Sampler(entries, self.clock)
        self.monitor = create_monitor(
            self.sampler, self.clock, rules or MonitorRules(), Identity("spark-1", "boot-1")
        )
        self.monitor.tick()
        self.ticks = [self.clock.now]

    def set_available(self, kib: int) -> None:
        self.meminfo.write_text(
            f"MemTotal:       {SIZE_KIB} kB\nMemFree:        {kib} kB\nMemAvailable:   {kib} kB\n"
        )

    def run(self, checks: int, before_check: Callable[[int], None] = lambda _: None) -> list[float]:
        """Run the monitor for this number of sleeps; return seconds between ticks."""
        machine, seen = self, self.monitor.latest

        class Sleeper(threading.Event):
            slept = 0

            def wait(self, timeout: float | None = None) -> bool:
                nonlocal seen
                if machine.monitor.latest is not seen:
                    seen = machine.monitor.latest
                    machine.ticks.append(machine.clock.now)
                machine.clock.now += timeout or 0.0
                self.slept += 1
                before_check(self.slept)
                if self.slept == checks:
                    self.set()
                return False

        self.monitor.run(Sleeper())
        return [round(after - before, 3) for before, after in pairwise(self.ticks[1:])]


def test_still_memory_is_ticked_once_a_second(tmp_path: Path) -> None:
    """A machine that has just become 64 % full is checked ten times a second and judged once."""
    gaps = Machine(tmp_path).run(60)

    assert gaps == [1.0] * 5


def test_moved_memory_is_ticked_soon(tmp_path: Path) -> None:
    """124 MiB of 121.7 GiB, at the first check that is 0.35 s after the last tick."""
    machine = Machine(tmp_path)

    gaps = machine.run(25, lambda check: machine.set_available(AVAILABLE_KIB - MIN_KIB) if check == 13 else None)

    assert gaps == [1.0, 0.4, 1.0]


def test_small_moves_add_up_to_a_tick(tmp_path: Path) -> None:
    """A quarter of the threshold per check makes every fourth one a tick: the distance to the last tick counts."""
    machine = Machine(tmp_path)

    gaps = machine.run(25, lambda check: machine.set_available(AVAILABLE_KIB - check * (MIN_KIB // 4 + 1)))

    assert gaps == [0.4] * 6


def test_smaller_moves_wait_for_the_next_second(tmp_path: Path) -> None:
    """Pages that come and go are less than the threshold."""
    machine = Machine(tmp_path)

    gaps = machine.run(31, lambda check: machine.set_available(AVAILABLE_KIB - (check % 2) * (MIN_KIB - 1)))

    assert gaps == [1.0] * 3


def test_invalid_meminfo_causes_a_tick(tmp_path: Path) -> None:
    """The distance that memory moved is unknown then, and the tick reports the error."""
    machine = Machine(tmp_path)

    def truncate(check: int) -> None:
        if check == 12:
            machine.meminfo.write_text("Mem")

    gaps = machine.run(15, truncate)

    assert gaps[:2] == [1.0, 0.2]


def test_interval_of_a_minute_is_shortened_to_a_second_near_exhaustion(tmp_path: Path) -> None:
    gaps = Machine(tmp_path, MonitorRules(interval_seconds=60.0)).run(40)

    assert gaps == [1.0] * 3


def test_kernel_without_mem_available_is_checked_too(tmp_path: Path) -> None:
    """Before Linux 3.14, available memory and its distance from the last tick are computed."""
    text = (MACHINES / "old-kernel/proc/meminfo").read_text()
    (tmp_path / "meminfo").write_text(text)
    shutil.copy(MACHINES / "old-kernel/proc/zoneinfo", tmp_path)
    collector = meminfo.Collector(Roots(procfs=tmp_path), 4096)
    collector.collect()
    still = collector.moved_bytes()
    free = int(re.findall(r"MemFree: +(\d+)", text)[0])
    (tmp_path / "meminfo").write_text(re.sub(r"(MemFree: +)\d+", rf"\g<1>{free - 1000}", text))

    moved = collector.moved_bytes()
    collector.close()

    assert (still, moved) == (0, 1000 << 10)


def share(used: Bytes, name: str = "cgroup") -> Share:
    return Share(
        name, ShareKind.CGROUP, "Container limit", "ram", used, "cgroup2", Quality.DERIVED, limit_bytes=GIB
    )


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        ((), (), 0),
        ((share(5),), (share(7),), 2),
        ((share(5), share(90, "other")), (share(7), share(40, "other")), 50),
        ((share(5),), (), math.inf),
        ((), (share(5),), math.inf),
        ((share(5),), (share(Absent.STALE),), math.inf),
        ((share(Absent.STALE),), (share(Absent.STALE),), 0),
    ],
)
def test_moved_between_is_the_largest_move_of_a_share(
    before: tuple[Share, ...], now: tuple[Share, ...], moved: float
) -> None:
    """A share that came, went or lost its figure counts as infinite, which causes a tick."""
    assert moved_between(before, now) == moved


def test_container_limit_read_by_another_thread_causes_a_tick(tmp_path: Path) -> None:
    """It may move while memory of the machine does not, for example when page cache shrinks."""
    limit = FakeCollector("cgroup", may_block=True, findings=Findings(shares=(share(700 << 20),)))
    machine = Machine(tmp_path, limit=limit)
    (runner,) = [one for one in machine.sampler.runners if one.entry.name == "cgroup"]
    runner.run()

    def grow(check: int) -> None:
        if check == 15:
            limit.findings = Findings(shares=(share(710 << 20),))
            runner.run()

    gaps = machine.run(18, grow)

    assert gaps == [1.0, 0.5]


def test_every_check_is_a_tick_if_no_collector_can_check() -> None:
    """For example on systems read through psutil."""
    clock, collector = FakeClock(), FakeCollector("host", findings=Findings(pools=(ram(45 * GIB),)))
    sampler = Sampler([CollectorEntry("host", lambda: collector, False)], clock)

    sampler.gather()

    assert sampler.moved_bytes() == math.inf


def pressure(used: float, available: int | None = None) -> Pressure:
    left = round((1 - used) * 64 * GIB) if available is None else available
    return Pressure(
        "ram", Level.MEDIUM, Level.MEDIUM, used, kind="system_ram", size_bytes=64 * GIB, available_bytes=left
    )


def test_processes_are_scanned_more_often_while_memory_moves() -> None:
    """From the moment that memory is near exhaustion, and again as soon as it has moved, however slowly."""
    pacing, restless = Pacing(), []

    for second in range(40):
        leak = max(0, second - 20) * (10 << 20)
        now = pressure(0.5 if second < 2 else 0.7)
        pacing.on_pressure([pressure(now.ratio, round(0.3 * 64 * GIB) - leak)], float(second), 1.0)
        restless.append(pacing.is_restless)

    assert restless.index(True) == 2
    assert restless[2 : 2 + int(RESTLESS_SECONDS)] == [True] * int(RESTLESS_SECONDS)
    assert not any(restless[2 + int(RESTLESS_SECONDS) : 27])
    assert all(restless[27:])


@pytest.mark.parametrize(
    ("more", "still"),
    [
        ({}, True),
        ({"reasons": (Reason("util", "70.0% used"),)}, True),
        ({"seconds_to_full": 90.0}, False),
        ({"reasons": (Reason("util", "70.0% used"), Reason("psi", "some tasks stalled"))}, False),
    ],
    ids=["calm", "used", "forecast", "waiting"],
)
def test_forecast_or_second_reason_makes_every_check_a_tick(more: dict[str, Any], still: bool) -> None:
    """A forecast is critical at its second consecutive tick: after a tenth of a second, not after one."""
    pacing = Pacing()

    pacing.on_pressure([replace(pressure(0.7), **more)], 10.0, 1.0)
    pacing.ticked_at = 10.0

    assert pacing.is_still(10.1, 1.0, lambda: 0) == still


def test_failed_tick_is_retried_at_the_next_check() -> None:
    """Its result is unknown, so it is retried whether memory moved or not."""
    pacing = Pacing()
    pacing.on_pressure([pressure(0.7)], 10.0, 1.0)
    pacing.ticked_at = 10.0
    still = pacing.is_still(10.1, 1.0, lambda: 0)
    pacing.ticked_at = None

    assert still
    assert not pacing.is_still(10.2, 1.0, lambda: 0)


@pytest.mark.measure
def test_daemon_reports_a_large_allocation_within_half_a_second(tmp_path: Path) -> None:
    """A DGX Spark that is 64 % used has one tick a second, and 2 GiB more are reported within half a second."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "gb10", machine, symlinks=True)
    meminfo = machine / "proc/meminfo"
    text = meminfo.read_text()
    kib = int(re.findall(r"MemAvailable: +(\d+)", text)[0])
    roots = [
        f"--{name}fs={machine / folder}" for name, folder in (("proc", "proc"), ("sys", "sys"), ("root", "root"))
    ]
    delays = []
    with running_daemon(tmp_path, *roots) as daemon:
        time.sleep(2)
        first = daemon.snapshot()["seq"]
        time.sleep(4)
        ticks = daemon.snapshot()["seq"] - first
        for step in range(1, 4):
            left = kib - step * (2 << 20)
            changed = text.replace(f"{kib} kB\nBuffers", f"{left} kB\nBuffers")
            time.sleep(1.3)
            with meminfo.open("r+b", buffering=0) as file:
                file.write(changed.encode())
            written = time.monotonic()
            daemon.wait_for("/api/v1/pools", lambda found, left=left: found[0]["available_bytes"] == left << 10)
            delays.append(time.monotonic() - written)

    assert ticks <= 6
    within("from a large allocation to its tick", min(delays), 0.5, "s")
