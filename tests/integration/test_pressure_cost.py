"""CPU cost of pacing near memory exhaustion, with moving and with still memory, in the real daemon."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from support.budget import within
from support.calibration import COLD_SECONDS, seconds_of_work, slowness
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.moving_memory import CopiedMachine
from support.paths import MACHINES

# 64 % used, so that memory is checked ten times a second while it moves.
MACHINE = MACHINES / "gb10"
MOVING_BUDGET, STILL_BUDGET = 0.012, 0.004
WINDOW_SECONDS = 1.5


def cpu_seconds(pid: int) -> float:
    """Return CPU time of all threads so far, in nanosecond resolution."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def cost_of(daemon: RunningDaemon) -> tuple[float, float]:
    """Return ticks per second and the fraction of a CPU of reference speed that they take."""
    ticks, cpu, at = daemon.snapshot()["seq"], cpu_seconds(daemon.pid), time.monotonic()
    work = []
    while time.monotonic() < at + WINDOW_SECONDS:
        time.sleep(0.1)
        work.append(seconds_of_work())
    cpu, seconds = cpu_seconds(daemon.pid) - cpu, time.monotonic() - at
    slow = slowness(statistics.median(work), COLD_SECONDS)
    return (daemon.snapshot()["seq"] - ticks) / seconds, cpu / seconds / slow


@pytest.mark.long
@pytest.mark.measure
def test_ten_readings_a_second_cost_at_most_twelve_thousandths_of_a_cpu(tmp_path: Path) -> None:
    """The cheapest of six windows counts: other load makes a tick slower, never faster.

    Every fourth reading of moving memory is a tick. With still memory it is one a second, and a third of that cost.
    """
    machine = CopiedMachine(MACHINE, tmp_path / "machine")
    with running_daemon(tmp_path, *machine.roots, environ=WITHOUT_COVERAGE) as daemon:
        time.sleep(12)
        still = [cost_of(daemon) for _ in range(6)]
        with machine.moving():
            time.sleep(1)
            moved = [cost_of(daemon) for _ in range(6)]

    assert max(rate for rate, _ in moved) > 2.2
    within("ten readings a second", min(cost for _, cost in moved), MOVING_BUDGET, "cores")
    assert max(rate for rate, _ in still) < 2.0
    within("machine at rest", min(cost for _, cost in still), STILL_BUDGET, "cores")
