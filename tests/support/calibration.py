"""Reference workload: its duration tells how fast the machine is at the moment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

# Its duration on a machine where budgets in seconds hold: repeated, and with cold caches between other work.
HOT_SECONDS, COLD_SECONDS = 60e-6, 150e-6
RECORDS = {str(number): {"pid": number, "sizes": [number] * 5} for number in range(20)}


def work() -> None:
    """Do a bit of everything that collectors do: objects, text, and small files of the kernel."""
    json.loads(json.dumps(RECORDS))
    for _ in range(8):
        descriptor = os.open("/proc/self/stat", os.O_RDONLY)
        os.read(descriptor, 512)
        os.close(descriptor)


def seconds_of_work() -> float:
    return _seconds_of(work)


def best_ratio(ours: Callable[[], object], witness: Callable[[], object], rounds: int = 7) -> float:
    """Return the cost of one relative to the other, the best of some rounds: a machine may change its speed."""
    return min(_seconds_of(ours) / _seconds_of(witness) for _ in range(rounds))


def _seconds_of(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def slowness(seconds: float, usual: float) -> float:
    """Return by what factor one run of the workload was slower than usual; never below 1."""
    return max(1.0, seconds / usual)
