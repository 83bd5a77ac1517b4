"""Test that programs which tests start end with a test process that is killed, alone or with its process group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from support.daemon_process import clean_environment
from support.waiting import wait_until

STARTS = """
import threading, time
from support.bound_process import start_bound

started = []
threads = [threading.Thread(target=lambda: started.append(start_bound(["sleep", "600"]))) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
started.append(start_bound(["sleep", "600"]))
print(*[one.pid for one in started], flush=True)
time.sleep(600)
"""


def is_sleeping(pid: int) -> bool:
    """Return True if the program runs in place of the one that started it."""
    return psutil.Process(pid).cmdline()[:1] == ["sleep"]


def has_ended(pid: int) -> bool:
    """Return True if the process is gone, or waits for a parent that reads its status."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["process", "process group"])
def test_program_ends_with_a_test_process_that_is_killed(kill: Callable[[int, int], None]) -> None:
    """Also those that threads started at once which have ended since: until then they run."""
    environ = clean_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, "-c", STARTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, start_new_session=True) as test:
        try:
            assert test.stdout is not None
            pids = [int(word) for word in test.stdout.readline().split()]
            wait_until(lambda: all(map(is_sleeping, pids)))
        finally:
            kill(test.pid, signal.SIGKILL)

    wait_until(lambda: all(map(has_ended, pids)))
    assert len(pids) == 9
