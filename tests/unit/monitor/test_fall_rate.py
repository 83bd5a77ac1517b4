"""Test that a collapse is read often enough at any slope, and that memory at rest is read as rarely as before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.pacing import MIN_SECONDS, Pacing
from support.fakes import GIB, FakeClock, FakeCollector, ram
from support.monitors import create_monitor, listen

SIZE = round(121.7 * GIB)
# A machine that has been at rest for this long when memory begins to fall.
REST_SECONDS = 3.0


class Memory(FakeCollector):
    """System RAM with available bytes by the clock. Records every reading."""

    def __init__(self, clock: FakeClock, available: Callable[[float], float], tick_seconds: float) -> None:
        super().__init__("meminfo")
        self.reads: list[tuple[float, int]] = []
        self.ticks: list[float] = []
        self._clock, self._available, self._began = clock, available, clock.now
        self._tick_seconds = tick_seconds
        self._last = 0

    def collect(self) -> Findings:
        self._last = self._read()
        self.ticks.append(round(self._clock.now - self._began, 6))
        self._clock.now += self._tick_seconds
        return Findings(pools=(ram(SIZE - self._last, SIZE),))

    def moved_bytes(self) -> int:
        return self._last - self._read()

    def _read(self) -> int:
        seconds = round(self._clock.now - self._began, 6)
        left = max(0, min(SIZE, round(self._available(seconds))))
        if not self.reads or self.reads[-1][0] < seconds:  # a probe may be followed by a tick
            self.reads.append((seconds, left))
        return left


class Loop:
    """The whole loop on a manual clock. `wakeups`: number of waits that ended. A tick takes `tick_seconds`."""

    def __init__(self, available: Callable[[float], float], tick_seconds: float = 0.0) -> None:
        self.clock = FakeClock()
        self.memory = Memory(self.clock, available, tick_seconds)
        self.wakeups = 0
        sampler = Sampler([CollectorEntry("meminfo", lambda: self.memory, False)], self.clock)
        self.monitor = create_monitor(sampler, self.clock, MonitorRules(), Identity("spark-1", "boot-1"))

    def run(self, seconds: float) -> Loop:
        loop, until = self, self.clock.now + seconds

        class Sleeper(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                loop.clock.now += timeout or 0.0
                loop.wakeups += 1
                if loop.clock.now >= until - 1e-6:
                    self.set()
                return False

        self.monitor.run(Sleeper())
        return self


def falling(
    start_gib: float, gib_per_second: float, begins: float, stops_gib: float = 0.0
) -> Callable[[float], float]:
    """Return available bytes that fall steadily from `begins` on."""
    return lambda seconds: max(stops_gib, start_gib - max(0.0, seconds - begins) * gib_per_second) * GIB


def lost_between_reads(reads: list[tuple[float, int]], since: float, floor: float) -> list[float]:
    """Return the lost parts of what was left, for readings from `since` on while more than `floor` was left."""
    return [
        1 - after[1] / before[1] for before, after in pairwise(reads) if before[0] >= since and before[1] > floor
    ]


@pytest.mark.parametrize("phase", [0.05, 0.35, 0.85, 0.95])
@pytest.mark.parametrize(
    ("start", "slope"),
    [(60.0, 1.0), (60.0, 4.0), (60.0, 14.0), (34.0, 14.2), (29.0, 2.9), (115.0, 30.0)],
    ids=["1 GiB/s", "4 GiB/s", "14 GiB/s", "34 to 12.7 GiB in 1.5 s", "29 to 2.5 GiB in 9 s", "30 GiB/s"],
)
def test_next_reading_comes_before_five_percent_of_what_is_left_is_gone(
    start: float, slope: float, phase: float
) -> None:
    """From the first reading on that saw a tenth of a second of the fall, until readings are 5 ms apart."""
    begins = REST_SECONDS + phase
    loop = Loop(falling(start, slope, begins)).run(REST_SECONDS + 1 + start / slope)

    seen = next(at for at, _ in loop.memory.reads if at >= begins + 0.1)
    lost = lost_between_reads(loop.memory.reads, seen, floor=slope * GIB * MIN_SECONDS / 0.05)
    gaps = [after[0] - before[0] for before, after in pairwise(loop.memory.reads)]

    assert len(lost) > 20
    assert max(lost) < 0.05
    assert min(gaps) >= MIN_SECONDS - 1e-6
    assert len(loop.memory.reads) < 700


@pytest.mark.parametrize("slope", [1.0, 4.0, 14.0])
def test_level_rises_as_soon_as_its_threshold_is_crossed(slope: float) -> None:
    """The tick comes within 10 ms after 5 % of the size are left, or earlier by forecast if the fall is steep."""
    seconds = 1.73
    loop = Loop(falling(0.05 * SIZE / GIB + seconds * slope, slope, REST_SECONDS))
    critical: list[float] = []

    def note(snapshot: Snapshot, _: object) -> None:
        if snapshot.pressure[0].level is Level.CRITICAL:
            critical.append(snapshot.monotonic - 1000.0)

    listen(loop.monitor, note)
    loop.run(REST_SECONDS + seconds + 0.2)

    assert critical[0] - (REST_SECONDS + seconds) <= 0.01


def at_rest(used: float, jitter: float = 0.0) -> Callable[[float], float]:
    """Return constant available bytes, of which a part alternates with every read-out."""
    return lambda seconds: SIZE * (1 - used) * (1 - jitter * (int(seconds * 100) % 3))


@pytest.mark.parametrize("jitter", [0.0, 0.0004])
@pytest.mark.parametrize(("used", "wakeups"), [(0.3, 60), (0.59, 60), (0.64, 150), (0.79, 200), (0.985, 600)])
def test_machine_at_rest_wakes_up_no_more_often_than_its_pace(used: float, wakeups: int, jitter: float) -> None:
    """Once a second, ten times a second for the first ten seconds from 60 % use, and then by the use.

    Each minute has 60 ticks.
    """
    loop = Loop(at_rest(used, jitter)).run(60)

    assert loop.wakeups <= wakeups + 1
    assert len(loop.memory.ticks) <= 61


@pytest.mark.parametrize(("used", "ticks", "wakeups"), [(0.64, 151, 601), (0.85, 205, 700), (0.92, 215, 910)])
def test_memory_that_moves_all_the_time_has_a_tick_for_every_fourth_reading(
    used: float, ticks: int, wakeups: int
) -> None:
    """1 GiB that is allocated and freed every tenth of a second, for a minute."""
    loop = Loop(lambda seconds: SIZE * (1 - used) - (int(seconds * 10 + 0.001) % 2) * GIB).run(60)

    assert 115 <= len(loop.memory.ticks) <= ticks
    assert loop.wakeups <= wakeups


def test_exhausted_memory_that_stays_exhausted_is_read_at_the_usual_pace() -> None:
    """A machine without available memory, at rest: the last readings are a tenth of a second apart again."""
    loop = Loop(falling(60.0, 14.0, REST_SECONDS)).run(20)

    last = [at for at, _ in loop.memory.reads if at > 12]

    assert len(last) <= 82


def test_memory_that_falls_in_steps_is_read_often_between_them() -> None:
    """An allocator that takes 256 MiB every 20 ms near the end: a reading without a fall does not slow the pace."""
    step = 0.25 * GIB

    def available(seconds: float) -> float:
        return 8 * GIB - step * max(0, int((seconds - REST_SECONDS) / 0.02))

    loop = Loop(available).run(REST_SECONDS + 0.6)
    lost = [before[1] - after[1] for before, after in pairwise(loop.memory.reads) if 3.2 < before[0] < 3.5]

    assert max(lost) <= 1.05 * step


def test_slow_ticks_take_at_most_a_third_of_a_cpu() -> None:
    """A board that needs 20 ms for a tick, with memory that falls to the end."""
    loop = Loop(falling(10.0, 1.0, REST_SECONDS), tick_seconds=0.02).run(REST_SECONDS + 10)
    ticks = [at for at in loop.memory.ticks if at > REST_SECONDS + 9]

    assert len(ticks) * 0.02 <= 0.35


def test_threshold_at_rest_is_crossed_once() -> None:
    """Use that swings around 80 % ticks when it is first crossed. Later the level is high."""
    loop = Loop(lambda seconds: SIZE * (0.2 + (0.0001 if int(seconds * 10) % 2 else -0.0001))).run(20)

    assert len(loop.memory.ticks) <= 23
    assert loop.wakeups <= 215


def verdict(kind: str, left: int, at: str = "x") -> Pressure:
    size = 64 * GIB
    return Pressure(at, Level.LOW, Level.LOW, 1 - left / size, kind=kind, size_bytes=size, available_bytes=left)


def test_dedicated_memory_does_not_shorten_the_interval() -> None:
    """A GPU's own memory is filled on purpose, and read once a second."""
    pacing = Pacing()

    for second in range(3):
        pacing.on_pressure([verdict("vram", (30 - 10 * second) * GIB)], float(second), 1.0)

    assert pacing.interval(1.0) == 1.0


def test_fall_of_a_container_shortens_the_interval() -> None:
    """It counts like System RAM, from the same rule."""
    pacing = Pacing()

    pacing.on_pressure([verdict("cgroup", 2 * GIB)], 1.0, 1.0)
    pacing.on_pressure([verdict("cgroup", 1 * GIB)], 1.1, 1.0)

    assert pacing.interval(1.0) == pytest.approx(0.04 * 1 / 10, abs=0.002)
