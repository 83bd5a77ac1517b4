"""What caches are worth here: the same work right after itself and after a pause, asleep or awake.

Whoever only counts in the pause needs next to no cache. What those of a quiet machine have lost by then went to
others on the same processor: to the kernel, or to neighbours that cannot be seen from here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

PAUSES = (0.001, 0.02, 0.2, 1.0)
LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 10, 200, 5.0


def count(seconds: float) -> None:
    """Be awake for so long, and touch nothing."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def cost_after(pause: Callable[[float], None], seconds: float, work: Callable[[], object]) -> float:
    """The median of microseconds of processor time that work takes after such pauses."""
    costs = []
    for _ in range(min(MOST_ROUNDS, max(LEAST_ROUNDS, round(SECONDS / seconds)))):
        pause(seconds)
        started = time.thread_time_ns()
        work()
        costs.append((time.thread_time_ns() - started) / 1000)
    return statistics.median(costs)


def bench_caches(works: Mapping[str, Callable[[], object]]) -> None:
    """A table of each work by what came before it."""
    print(f"| after a pause | {' | '.join(f'{name}, µs of CPU' for name in works)} |")
    print("|---|" + "---:|" * len(works))
    for seconds in PAUSES:
        for words, pause in (("asleep", time.sleep), ("counting", count)):
            costs = [cost_after(pause, seconds, work) for work in works.values()]
            print(f"| of {seconds:g} s, {words} | {' | '.join(f'{cost:.0f}' for cost in costs)} |", flush=True)
    print()
