"""How long tests wait for what will come, and how they measure what must not take long.

Tests share a machine that may be slow, busy or a guest that its host stops for half a second at a time. Who waits
for something that comes anyway has patience, which costs nothing where it comes at once; who holds the daemon to a
time counts the time that its machine was there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

PATIENCE_SECONDS = 60.0


def wait_until(
    true: Callable[[], object], seconds: float = PATIENCE_SECONDS, told: Callable[[], object] = lambda: "not so"
) -> float:
    """Seconds until it is so; fails with what is `told` when it is not so in time."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"after {seconds:g} s: {told()}"
        time.sleep(0.01)
    return time.monotonic() - began


def seconds_kept_by_host() -> float:
    """How long this virtual machine's cores wanted to run and were not let; 0 on a machine of its own."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def wait_for_a_quiet_host(seconds: float = 30.0) -> None:
    """Until this machine gets nine tenths of the time that it wants, or so many seconds have passed."""
    until = time.monotonic() + seconds
    while True:
        began, kept = time.monotonic(), seconds_kept_by_host()
        while time.monotonic() - began < 0.5:
            pass
        if seconds_kept_by_host() - kept < 0.05 or time.monotonic() > until:
            return
        time.sleep(2.0)


def seconds_without_a_core(*pids: int) -> float:
    """How long the threads of these were ready to run while the cores of this machine had others to run."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # a thread that ended since
                total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


class Stopwatch:
    """Measures time in which the machine was there for these processes and for this one.

    Without that a measured time is the machine's, and not the daemon's, wherever others work on it too.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._lost = self._lost_so_far()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        passed = time.monotonic() - self._began
        return max(0.0, passed - (self._lost_so_far() - self._lost))

    def _lost_so_far(self) -> float:
        return seconds_without_a_core(*self._pids) + seconds_kept_by_host()
