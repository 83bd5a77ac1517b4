"""Kill a recorder with SIGKILL at random moments under critical pressure, and check the files that it left.

    PYTHONPATH=tests python -m scripts.crash_loop [ROUNDS]

Each round is a process with the real loop, rules and files, whose System RAM is nearly full; it writes the number
of each published tick to a pipe. After its end all of these ticks are on disk, except one at most.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from memwatch.core.clock import SystemClock
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.findings import Findings
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.history.records import TICK, PayloadReader
from memwatch_monitor.history.ring_file import open_ring_set
from memwatch_monitor.history.writer import HistoryWriter
from support.fakes import GIB, FakeCollector, ram
from support.monitors import create_monitor, history

SIZE = 4 << 20
TICK_SECONDS = 0.002
BOOT = "5b4e1c1e-3c1f-4a7e-8a51-1f0a3c1f4a7e"


class Round(Struct, frozen=True):
    """`seen` ticks were published, `kept` of them are on disk; `unclean` if the crash was detected."""

    seen: int
    kept: int
    unclean: bool
    damaged: int


def record(folder: Path, pipe: int) -> None:
    """Tick until killed; the number of each tick is written to the pipe when the tick is published."""
    clock = SystemClock()
    collector = FakeCollector("meminfo", findings=Findings(pools=(ram(int(63.9 * GIB)),)))
    sampler = Sampler([CollectorEntry("meminfo", lambda: collector, False)], clock)
    monitor = create_monitor(sampler, clock, MonitorRules(), Identity("crash", BOOT))
    history(monitor).use_writer(HistoryWriter(folder, SIZE, clock, BOOT))
    while True:
        snapshot = monitor.tick()
        os.write(pipe, snapshot.seq.to_bytes(4, "little"))
        time.sleep(TICK_SECONDS)


def run_once(folder: Path, seconds: float) -> Round:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            record(folder, writing)
        finally:
            os._exit(1)
    os.close(writing)
    first = os.read(reading, 4)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    numbers = first
    while data := os.read(reading, 1 << 16):
        numbers += data
    os.close(reading)
    whole = len(numbers) // 4 * 4
    seen = int.from_bytes(numbers[whole - 4 : whole], "little") if whole else 0
    return _left_behind(folder, seen)


def _left_behind(folder: Path, seen: int) -> Round:
    ring_set = open_ring_set(folder, SIZE, time.time())
    flight = ring_set.contents["flight"].records
    run = flight[-1].stamp.run
    ticks = [
        PayloadReader(ring_set).tick("flight", one)
        for one in ring_set.records("flight", TICK)
        if one.stamp.run == run
    ]
    kept = max((tick.seq for tick in ticks if tick), default=0)
    missing = seen - len([tick for tick in ticks if tick and tick.seq <= seen])
    for ring in ring_set.rings.values():
        ring.close()
    return Round(seen, kept if missing <= 1 else seen - missing, flight[-1].kind == TICK, ring_set.lost)


def crash(rounds: int, folder: Path, seed: int = 9) -> list[Round]:
    moments = random.Random(seed)
    return [run_once(folder, moments.uniform(0.0, 0.04)) for _ in range(rounds)]


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        found = crash(rounds, Path(folder))
    missing = [max(0, one.seen - one.kept) for one in found]
    ticks = sum(one.seen for one in found)
    print(
        f"{rounds} times SIGKILL, {ticks} ticks published, at most {max(missing)} missing, {sum(missing)} in total"
    )
    print(f"{sum(one.damaged for one in found)} torn records dropped; every start succeeded")
    return 0 if max(missing) <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
