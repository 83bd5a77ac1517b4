"""Health endpoints while one thread of the daemon is stopped, and afterwards."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemon_process import RunningDaemon, running_daemon

# From <linux/ptrace.h> and <linux/wait.h>.
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WAIT_FOR_ALL = 0x4206, 0x4207, 17, 0x40000000


def test_pause_of_half_a_second_is_healthy(tmp_path: Path) -> None:
    """At ten ticks a second, a paused machine is no reason to restart the daemon."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon, thread_stopped(daemon.pid, loop_of(daemon)):
        before = daemon.get("/healthz").json["age_seconds"]
        time.sleep(max(0.0, 0.5 - before))
        health = daemon.get("/healthz")

    assert health.json["age_seconds"] > 0.3
    # A pause of this machine may add to it and exceed the tolerated second.
    assert health.status == (200 if health.json["age_seconds"] <= 1 else 503)


def test_stopped_sampling_loop_is_reported_as_stalled(tmp_path: Path) -> None:
    """The rest of the daemon answers: 503 with the age of the last tick, and a banner on the page."""
    with running_daemon(tmp_path, "--interval", "200ms") as daemon:
        daemon.wait_for("/healthz", lambda health: health["status"] == "ok")
        with thread_stopped(daemon.pid, loop_of(daemon)):
            daemon.wait_for("/healthz", lambda health: health["status"] == "stalled")
            health = daemon.get("/healthz")
            ready = daemon.get("/readyz")
            page = daemon.get("/").text
        daemon.wait_for("/healthz", lambda health: health["status"] == "ok")
        later = daemon.get("/").text

    assert health.status == 503
    assert health.json["age_seconds"] > 1
    assert ready.status == 200
    assert re.search(r'role="alert">No new data for \d', page)
    assert "No new data for" not in later


def loop_of(daemon: RunningDaemon) -> int:
    """Return the sampling thread: the one with the most CPU time, except the main thread."""
    before, first = cpu_ns_by_thread(daemon.pid), daemon.snapshot()["seq"]
    daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] > first + 10)
    after = cpu_ns_by_thread(daemon.pid)
    return max(after.keys() & before.keys(), key=lambda thread: after[thread] - before[thread])


def cpu_ns_by_thread(pid: int) -> dict[int, int]:
    """Return the CPU time of each thread except the main one, in ns."""
    return {
        int(task.name): int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
        if int(task.name) != pid
    }


@contextmanager
def thread_stopped(pid: int, thread: int) -> Iterator[None]:
    """Stop one thread as a debugger does, while it sleeps and therefore holds no lock."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        while "S" not in Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[:1]:
            time.sleep(0.001)
        assert libc.ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(thread, WAIT_FOR_ALL)
    try:
        yield
    finally:
        assert libc.ptrace(PTRACE_DETACH, thread, None, None) == 0, os.strerror(ctypes.get_errno())
