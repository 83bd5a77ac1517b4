"""Waiting for events in tests, and measuring time without that of other programs.

Tests share a machine that may be slow or busy, or a guest that its host stops for half a second at a time. Waiting
for an event uses a long timeout, which costs nothing if the event comes at once. A time limit for the daemon counts
only the time in which its machine ran.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil

from support.lanes import may_pause_longer

MAX_WAIT_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.0005
# A pure test may not sleep longer, and a measurement has this resolution.
MAX_PAUSE_SECONDS = 0.02
# Of other tests: each look may be a request, which costs both sides 5 ms of CPU time.
MAX_LONG_PAUSE_SECONDS = 0.1


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def wait_until(
    true: Callable[[], object], seconds: float = MAX_WAIT_SECONDS, describe: Callable[[], object] = lambda: "not so"
) -> float:
    """Return the seconds until `true` holds; fail with the text of `describe` after the timeout."""
    began, pause = time.monotonic(), FIRST_PAUSE_SECONDS
    while not true():
        assert time.monotonic() - began < seconds, f"after {seconds:g} s: {describe()}"
        time.sleep(pause)
        pause = _next_pause(pause)
    return time.monotonic() - began


def _next_pause(pause: float) -> float:
    if pause < MAX_PAUSE_SECONDS:
        return min(2 * pause, MAX_PAUSE_SECONDS)
    return min(1.25 * pause, MAX_LONG_PAUSE_SECONDS) if may_pause_longer() else pause


def wait_readable(file: int | HasFileno, seconds: float | None = 0.0) -> bool:
    """Return whether there is something to read within this time; None waits for ever.

    select() refuses descriptors from 1,024 on, which the process of many tests may have.
    """
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


def steal_seconds() -> float:
    """Return the steal time of this virtual machine's cores; 0 on a physical machine."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def wait_for_quiet_host(seconds: float = 30.0) -> None:
    """Wait until this machine gets nine tenths of the time that it wants, for `seconds` at most."""
    until = time.monotonic() + seconds
    while True:
        began, kept = time.monotonic(), steal_seconds()
        while time.monotonic() - began < 0.5:
            pass
        if steal_seconds() - kept < 0.05 or time.monotonic() > until:
            return
        time.sleep(2.0)


def run_delay_seconds(*pids: int) -> float:
    """Return how long threads of these processes were runnable while the cores were busy with others."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # a thread that has ended since
                total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


class Stopwatch:
    """Elapsed time without the time in which these processes and this one could not run.

    On a shared machine plain elapsed time would measure the machine's load instead of the daemon.
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
        return run_delay_seconds(*self._pids) + steal_seconds()
