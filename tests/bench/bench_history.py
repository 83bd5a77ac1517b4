"""What remembering costs: memory of all tiers when full, a row, and the slowest questions."""

from __future__ import annotations

import random
import time
import tracemalloc

from memwatch.history import History
from memwatch.tier import Cell, Row

SERIES = [f"pool.gpu{number % 8}.figure{number}_bytes" for number in range(100)]
POINTS = (300, 2000)


def full_history(end: float) -> History:
    """Every row of every tier in use, as after thirty days."""
    history = History()
    for tier in history.tiers:
        for step in range(tier.rows, 0, -1):
            tier.add(end - step * tier.length.step_seconds, row_of())
    return history


def row_of() -> Row:
    values = [random.random() * 1e11 for _ in range(3)]
    least, mean, most = sorted(values)
    return dict.fromkeys(SERIES, Cell(least, mean, most))


def memory_mb() -> float:
    """All tiers with 100 series, before any row is there: columns are made whole."""
    tracemalloc.start()
    history = History()
    for tier in history.tiers:
        tier.add(0.0, row_of())
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / 1e6


def query_ms(history: History, seconds: float, points: int) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        history.query(SERIES[0], history.end - seconds, history.end, points)
        best = min(best, time.perf_counter() - started)
    return best * 1000


def add_us(history: History, rows: int = 600) -> float:
    row = row_of()
    started = time.thread_time_ns()
    for _ in range(rows):
        history.add_row(history.end + 1.0, row)
    return (time.thread_time_ns() - started) / rows / 1000


def bench_history() -> None:
    history = full_history(3e6)
    print("| history of 100 series: 1 h at 1 s, 24 h at 10 s, 30 d at 5 min | |\n|---|---:|")
    print(f"| memory of all tiers, MB | {memory_mb():.1f} |")
    print(f"| one row a second, coarser tiers included, µs of CPU | {add_us(history):.0f} |")
    for name, seconds in (("1 hour", 3600.0), ("24 hours", 86_400.0), ("30 days", 30 * 86_400.0)):
        for points in POINTS:
            print(f"| {name} of one series in {points} points, ms | {query_ms(history, seconds, points):.1f} |")
    print()


if __name__ == "__main__":
    bench_history()
