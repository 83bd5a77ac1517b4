"""Stop one thread of a daemon, as a debugger does."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemon_process import RunningDaemon

# From <linux/ptrace.h> and <linux/wait.h>.
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WAIT_FOR_ALL = 0x4206, 0x4207, 17, 0x40000000


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
