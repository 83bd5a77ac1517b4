"""Ten looks a second cost little: the real daemon, near the edge, where memory moves and where it stands still."""

from __future__ import annotations

import re
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.calibration import COLD_SECONDS, seconds_of_work, slowness
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.paths import MACHINES

# 64 % of it are used, so that it is looked at ten times a second.
MACHINE = MACHINES / "gb10"
MOVING_BUDGET, STILL_BUDGET = 0.02, 0.006
WINDOW_SECONDS = 1.5


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads so far, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def cost_of(daemon: RunningDaemon) -> tuple[float, float]:
    """Ticks a second, and the part of a processor of the usual speed that they take."""
    ticks, cpu, at = daemon.snapshot()["seq"], cpu_seconds(daemon.pid), time.monotonic()
    beside = []
    while time.monotonic() < at + WINDOW_SECONDS:
        time.sleep(0.1)
        beside.append(seconds_of_work())
    cpu, seconds = cpu_seconds(daemon.pid) - cpu, time.monotonic() - at
    slow = slowness(statistics.median(beside), COLD_SECONDS)
    return (daemon.snapshot()["seq"] - ticks) / seconds, cpu / seconds / slow


@contextmanager
def moving(meminfo: Path) -> Iterator[None]:
    """A gibibyte comes and goes in each tenth of a second."""
    text, over = meminfo.read_text(), threading.Event()
    (kib,) = re.findall(r"MemAvailable: +(\d+)", text)
    texts = text, text.replace(kib, str(int(kib) - (1 << 20)))

    def move() -> None:
        with meminfo.open("r+b", buffering=0) as file:
            for turn in range(10_000):
                if over.wait(0.09):
                    return
                file.seek(0)
                file.write(texts[turn % 2].encode())

    mover = threading.Thread(target=move)
    mover.start()
    try:
        yield
    finally:
        over.set()
        mover.join()


@pytest.mark.long
@pytest.mark.alone
def test_ten_ticks_a_second_cost_two_percent_of_a_processor_at_most(tmp_path: Path) -> None:
    """Of six windows the cheapest counts: what others do on this machine makes a tick dearer, never cheaper. Where
    nothing moves it is one tick a second, and a third of that."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINE, machine, symlinks=True)
    roots = [f"--{name}fs={machine / name}" for name in ("proc", "sys")]
    with running_daemon(tmp_path, *roots, f"--rootfs={machine / 'root'}", environ=WITHOUT_COVERAGE) as daemon:
        time.sleep(12)
        still = [cost_of(daemon) for _ in range(6)]
        with moving(machine / "proc/meminfo"):
            time.sleep(1)
            moved = [cost_of(daemon) for _ in range(6)]

    assert max(rate for rate, _ in moved) > 8.0
    assert min(cost for _, cost in moved) <= MOVING_BUDGET, moved
    assert max(rate for rate, _ in still) < 2.0
    assert min(cost for _, cost in still) <= STILL_BUDGET, still
