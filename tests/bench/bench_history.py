"""Measure the cost of history: memory of all full tiers, one row, and the slowest queries."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from msgspec.structs import replace

from memwatch.core.model import Process
from memwatch.core.owners import sum_owners
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.history.tier import Aggregate, Row
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.tiers import History
from support.sample_history import SERIES, full_history, jumping, memory_mb, noise, still
from support.sample_snapshots import critical_gb10

POINTS = (300, 2000)


def rows() -> Iterator[tuple[str, Row]]:
    """Yield kinds of rows, each with its name."""
    least, mean, most = sorted(random.random() * 1e11 for _ in range(3))
    yield "each value read once", dict.fromkeys(SERIES, mean)
    yield "of ten ticks a second", dict.fromkeys(SERIES, Aggregate(least, mean, most))


def query_ms(history: History, seconds: float, points: int) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        history.query(SERIES[0], history.end - seconds, history.end, points)
        best = min(best, time.perf_counter() - started)
    return best * 1000


def add_us(history: History, row: Row, count: int = 600) -> float:
    started = time.thread_time_ns()
    for _ in range(count):
        history.add_row(history.end + 1.0, row)
    return (time.thread_time_ns() - started) / count / 1000


def holder_us(devices: int, count: int = 600) -> float:
    """Return the time of a reading of the largest of 55 processes, `devices` of which have GPU memory."""
    snapshot = processes_of(55, devices)
    past = HolderHistory()
    started = time.thread_time_ns()
    for number in range(count):
        past.add(10.0 * number, snapshot)
    return (time.thread_time_ns() - started) / count / 1000


def processes_of(count: int, devices: int) -> Snapshot:
    processes = [
        Process(
            pid,
            float(pid),
            f"job{pid}",
            pid << 26,
            pid << 26,
            "rss",
            unit=f"job{pid}.service",
            container=f"{pid % 30:012x}",
            device_bytes={"cuda": pid << 26} if pid <= devices else {},
        )
        for pid in range(1, count + 1)
    ]
    return replace(critical_gb10(), processes=tuple(processes), owners=sum_owners(processes))


def bench_history() -> None:
    history = full_history(jumping)
    print("| history of 100 series: 1 h at 1 s, 24 h at 10 s, 30 d at 5 min | |\n|---|---:|")
    for name, cells_of in (
        ("values are constant", still),
        ("all values vary", jumping),
        ("all values are noise", noise),
    ):
        print(f"| memory of all tiers when full, MB, if {name} | {memory_mb(cells_of):.1f} |")
    for kind, row in rows():
        print(f"| one row a second, {kind}, coarser tiers included, µs of CPU | {add_us(history, row):.0f} |")
    for devices in (0, 20):
        print(f"| largest of 55 processes, {devices} on a GPU, every 10 s, µs of CPU | {holder_us(devices):.0f} |")
    for name, seconds in (("1 hour", 3600.0), ("24 hours", 86_400.0), ("30 days", 30 * 86_400.0)):
        for points in POINTS:
            print(f"| {name} of one series in {points} points, ms | {query_ms(history, seconds, points):.1f} |")
    print()


if __name__ == "__main__":
    bench_history()
