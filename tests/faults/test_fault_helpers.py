"""Test killed and stuck helpers: only GPU figures are missing, and only for a while."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from fault_oracle import back_in_time, survived

from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Trouble
from support.daemon_process import open_files, running_daemon
from support.waiting import MAX_WAIT_SECONDS

QUICK = '[collectors.nvml]\nrestart_after = "1s"\n'
RTX = sample_nvml.READY["rtx-4090"]


def newest_helper(simulator: Simulator, before: set[int]) -> int:
    """Return the pid of the helper if it is not one of `before`."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while not (found := {call.pid for call in simulator.calls()} - before):
        assert time.monotonic() < until, "no other helper came"
        time.sleep(0.05)
    return found.pop()


def test_killed_helper_leaves_the_driver_usable(tmp_path: Path) -> None:
    """After each of three SIGKILLs a new helper opens the driver, and the GPU has its figures again."""
    simulator, seen = Simulator.of(tmp_path, RTX), set[int]()
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_until_ok("nvml")
        for _ in range(3):
            helper = newest_helper(simulator, seen)
            seen.add(helper)
            with survived(daemon):
                os.kill(helper, signal.SIGKILL)
                newest_helper(simulator, seen)
                daemon.wait_until_ok("nvml")
            assert daemon.get("/api/v1/pools").json[1]["used_bytes"] is not None


def test_stuck_helper_does_not_block_a_new_daemon(tmp_path: Path) -> None:
    """A helper that cannot be killed holds no listening socket and no lock on the state folder."""
    stuck = {"nvmlDeviceGetMemoryInfo_v2": Trouble(latency_ms=600_000)}
    simulator, state = Simulator.of(tmp_path, RTX), tmp_path / "state"
    arguments = [*simulator.roots, f"--state-dir={state}"]
    with running_daemon(tmp_path, *arguments, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_until_ok("nvml")
        helper = newest_helper(simulator, set())
        simulator.show(RTX.with_gpu(0, troubles=stuck))
        time.sleep(1.5)
        helper_files = open_files(helper)
        daemon.process.kill()
        daemon.process.wait(MAX_WAIT_SECONDS)
        again = [*arguments, "--listen", f"127.0.0.1:{daemon.port}"]
        with back_in_time(tmp_path, *again, environ=simulator.environ, config=QUICK) as successor:
            log = successor.read_log()

    assert not [name for name in helper_files if name.startswith("socket:")]
    assert not [name for name in helper_files if name.startswith(str(state))]
    assert "is in use by another memwatchd" not in log


def test_hanging_driver_is_started_again_while_memory_is_sampled(tmp_path: Path) -> None:
    """The first restart has no pause. RAM is sampled meanwhile."""
    stuck = RTX.with_gpu(0, troubles={"nvmlDeviceGetMemoryInfo_v2": Trouble(latency_ms=600_000)})
    simulator = Simulator.of(tmp_path, stuck)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon, survived(daemon):
        first = newest_helper(simulator, set())
        daemon.wait_for_log("was killed")
        newest_helper(simulator, {first})
        up = [line for line in daemon.get("/metrics").text.splitlines() if line.startswith("memwatch_collector_up")]

    assert 'memwatch_collector_up{collector="nvml"} 0.0' in up
    assert 'memwatch_collector_up{collector="meminfo"} 1.0' in up
