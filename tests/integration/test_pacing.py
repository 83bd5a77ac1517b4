"""Near the edge: ten looks a second, and a tick where one of them saw memory move."""

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

from memwatch.collectors import meminfo
from memwatch.collectors.base import Collector, CollectorEntry
from memwatch.findings import Findings
from memwatch.linux.files import Roots
from memwatch.model import Absent, Bytes, Quality, Share, ShareKind
from memwatch.monitor.loop import Identity, Monitor, MonitorRules
from memwatch.monitor.pacing import MIN_MOVE_RATIO, RESTLESS_SECONDS, Pacing
from memwatch.monitor.sampler import Sampler, moved_between
from memwatch.snapshot import Level, Pressure, Reason
from support.daemon_process import running_daemon
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.paths import MACHINES

# Of the machine in the folder: 121.7 GiB, of which 63.6 % are used.
SIZE_KIB, AVAILABLE_KIB = 127_600_748, 46_466_008
MIN_KIB = math.ceil(SIZE_KIB * MIN_MOVE_RATIO)


class Machine:
    """A folder with a meminfo, the loop that looks at it, and a clock that its sleeping moves."""

    def __init__(self, folder: Path, rules: MonitorRules | None = None, limit: Collector | None = None) -> None:
        self.meminfo = folder / "meminfo"
        self.set_available(AVAILABLE_KIB)
        self.clock, self.ticks = FakeClock(), [0.0]
        entries = [CollectorEntry("meminfo", lambda: meminfo.Collector(Roots(procfs=folder), 4096), False)]
        if limit is not None:
            entries.append(CollectorEntry("cgroup", lambda: limit, True))
        self.sampler = Sampler(entries, self.clock)
        self.monitor = Monitor(self.sampler, self.clock, rules or MonitorRules(), Identity("spark-1", "boot-1"))
        self.monitor.tick()
        self.ticks = [self.clock.now]

    def set_available(self, kib: int) -> None:
        self.meminfo.write_text(
            f"MemTotal:       {SIZE_KIB} kB\nMemFree:        {kib} kB\nMemAvailable:   {kib} kB\n"
        )

    def run(self, looks: int, before_look: Callable[[int], None] = lambda _: None) -> list[float]:
        """Have the loop sleep so often; seconds between ticks."""
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
                before_look(self.slept)
                if self.slept == looks:
                    self.set()
                return False

        self.monitor.run(Sleeper())
        return [round(after - before, 3) for before, after in pairwise(self.ticks[1:])]


def test_what_stands_still_is_ticked_once_a_second(tmp_path: Path) -> None:
    """A machine that is 64 % full all day is looked at ten times a second, and judged once."""
    gaps = Machine(tmp_path).run(60)

    assert gaps == [1.0] * 5


def test_what_moves_is_ticked_at_the_next_look(tmp_path: Path) -> None:
    """124 MiB of 121.7 GiB, within a tenth of a second."""
    machine = Machine(tmp_path)

    gaps = machine.run(24, lambda look: machine.set_available(AVAILABLE_KIB - MIN_KIB) if look == 13 else None)

    assert gaps == [1.0, 0.3, 1.0]


def test_what_moves_little_by_little_adds_up(tmp_path: Path) -> None:
    """A third of that in each tenth: every third look is a tick, as what counts is how far it is from the last."""
    machine = Machine(tmp_path)

    gaps = machine.run(20, lambda look: machine.set_available(AVAILABLE_KIB - look * (MIN_KIB // 3 + 1)))

    assert gaps == [0.3] * 6


def test_what_moves_less_waits_for_the_second(tmp_path: Path) -> None:
    """Pages that come and go are nobody's model."""
    machine = Machine(tmp_path)

    gaps = machine.run(31, lambda look: machine.set_available(AVAILABLE_KIB - (look % 2) * (MIN_KIB - 1)))

    assert gaps == [1.0] * 3


def test_a_file_that_makes_no_sense_is_for_a_tick_to_tell(tmp_path: Path) -> None:
    """Nothing is known of how far memory moved then."""
    machine = Machine(tmp_path)

    def spoil(look: int) -> None:
        if look == 12:
            machine.meminfo.write_text("Mem")

    gaps = machine.run(15, spoil)

    assert gaps[:2] == [1.0, 0.2]


def test_who_ticks_once_a_minute_ticks_once_a_second_near_the_edge(tmp_path: Path) -> None:
    """As before; whatever is read once a second stays fresh."""
    gaps = Machine(tmp_path, MonitorRules(interval_seconds=60.0)).run(40)

    assert gaps == [1.0] * 3


def test_a_kernel_without_mem_available_is_looked_at_as_well(tmp_path: Path) -> None:
    """Before Linux 3.14: what it would have said is computed, and how far that has moved."""
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
def test_how_far_shares_have_moved(before: tuple[Share, ...], now: tuple[Share, ...], moved: float) -> None:
    """The farthest of them; one that came, went or lost its figure is for a tick to tell."""
    assert moved_between(before, now) == moved


def test_a_limit_that_another_thread_looks_at_is_not_waited_for(tmp_path: Path) -> None:
    """It moves while what the machine has does not, as where page cache makes room for it."""
    limit = FakeCollector("cgroup", may_block=True, findings=Findings(shares=(share(700 << 20),)))
    machine = Machine(tmp_path, limit=limit)
    (runner,) = [one for one in machine.sampler.runners if one.entry.name == "cgroup"]
    runner.run()

    def grow(look: int) -> None:
        if look == 15:
            limit.findings = Findings(shares=(share(710 << 20),))
            runner.run()

    gaps = machine.run(18, grow)

    assert gaps == [1.0, 0.5]


def test_without_anybody_who_can_look_each_look_is_a_tick() -> None:
    """As on systems that psutil tells of."""
    clock, collector = FakeClock(), FakeCollector("host", findings=Findings(pools=(ram(45 * GIB),)))
    sampler = Sampler([CollectorEntry("host", lambda: collector, False)], clock)

    sampler.gather()

    assert sampler.moved_bytes() == math.inf


def pressure(used: float, available: int | None = None) -> Pressure:
    left = round((1 - used) * 64 * GIB) if available is None else available
    return Pressure(
        "ram", Level.MEDIUM, Level.MEDIUM, used, kind="system_ram", size_bytes=64 * GIB, available_bytes=left
    )


def test_who_holds_it_is_looked_for_sooner_as_long_as_it_moves() -> None:
    """From the moment that it comes near the edge; again as soon as it has moved, however slowly."""
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
def test_what_is_about_to_happen_has_each_look_judged(more: dict[str, Any], still: bool) -> None:
    """A forecast is critical at the second tick on end that makes it: in a tenth of a second, not in one."""
    pacing = Pacing()

    pacing.on_pressure([replace(pressure(0.7), **more)], 10.0, 1.0)
    pacing.ticked_at = 10.0

    assert pacing.is_still(10.1, 1.0, lambda: 0) == still


def test_a_tick_that_failed_is_tried_again_at_the_next_look() -> None:
    """Whatever moved or not: nobody knows what it would have said."""
    pacing = Pacing()
    pacing.on_pressure([pressure(0.7)], 10.0, 1.0)
    pacing.ticked_at = 10.0
    still = pacing.is_still(10.1, 1.0, lambda: 0)
    pacing.ticked_at = None

    assert still
    assert not pacing.is_still(10.2, 1.0, lambda: 0)


def test_a_real_daemon_sees_a_model_loaded_at_once_and_rests_otherwise(tmp_path: Path) -> None:
    """A DGX Spark of which 64 % are used: a tick a second, and 2 GiB that are taken are told within half of one."""
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
    assert min(delays) < 0.5
