"""Measure the effect of CPU caches: the same work after a pause, asleep or busy.

A pause in which the process only counts needs almost no cache. Lines lost on an idle machine went to other work on
the same processor: to the kernel, or to neighbours on the host.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

PAUSES = (0.001, 0.02, 0.2, 1.0)
MIN_ROUNDS, MAX_ROUNDS, SECONDS = 10, 200, 5.0


def count(seconds: float) -> None:
    """Stay busy for this time without touching memory."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def cost_after(pause: Callable[[float], None], seconds: float, work: Callable[[], object]) -> float:
    """Return the median CPU time of the work after such pauses, in microseconds."""
    costs = []
    for _ in range(min(MAX_ROUNDS, max(MIN_ROUNDS, round(SECONDS / seconds)))):
        pause(seconds)
        started = time.thread_time_ns()
        work()
        costs.append((time.thread_time_ns() - started) / 1000)
    return statistics.median(costs)


def bench_caches(works: Mapping[str, Callable[[], object]]) -> None:
    """Print a table of each work by the pause before it."""
    print(f"| after a pause | {' | '.join(f'{name}, µs of CPU' for name in works)} |")
    print("|---|" + "---:|" * len(works))
    for seconds in PAUSES:
        for words, pause in (("asleep", time.sleep), ("counting", count)):
            costs = [cost_after(pause, seconds, work) for work in works.values()]
            print(f"| of {seconds:g} s, {words} | {' | '.join(f'{cost:.0f}' for cost in costs)} |", flush=True)
    print()
