"""What watching costs: our reading beside a bare read of the same files, our daemon beside its peers, in one run."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from subjects import Subject, cpu_seconds, free_port, load, rss_mib, running, subjects, wakeups

from memwatch.clock import SystemClock
from memwatch.collector import Roots
from memwatch.collectors import CollectorOptions, enlist
from memwatch.monitor import Identity, Monitor, Rules
from memwatch.sampler import Sampler

READ_EVERY_TICK = ("memory", "psi")


def cpu_of(work: Callable[[], object], times: int) -> float:
    """Microseconds of processor time for one call, the best of five rounds."""
    rounds = []
    for _ in range(5):
        started = time.thread_time_ns()
        for _ in range(times):
            work()
        rounds.append((time.thread_time_ns() - started) / times / 1000)
    return min(rounds)


def bench_reading(times: int) -> None:
    """The files read on every tick: bare, and with parsing and checking."""
    paths = [Path("/proc/meminfo"), Path("/proc/pressure/memory")]
    descriptors = [os.open(path, os.O_RDONLY) for path in paths if path.exists()]
    enlisted = enlist(Roots(), CollectorOptions())
    collectors = [entry.make() for entry in enlisted if entry.name in READ_EVERY_TICK]

    bare = cpu_of(lambda: [os.pread(one, 8192, 0) for one in descriptors], times)
    read = cpu_of(lambda: [one.collect() for one in collectors], times)
    quick = [entry for entry in enlisted if not entry.may_block]
    monitor = Monitor(Sampler(quick, SystemClock()), SystemClock(), Rules(), Identity("bench", "bench"))
    tick = cpu_of(monitor.tick, times)

    print("| in this process, hot caches | µs of CPU | ratio |\n|---|---:|---:|")
    print(f"| bare pread of meminfo and pressure/memory | {bare:.1f} | 1.0 |")
    print(f"| the same, parsed and checked | {read:.1f} | {read / bare:.1f} |")
    print(f"| a whole tick: gathered, judged, remembered | {tick:.1f} | {tick / bare:.1f} |\n")


def bench_subject(subject: Subject, port: int, seconds: int) -> str:
    """One row of the table of daemons."""
    with running(subject, port) as (pid, start_seconds):
        time.sleep(2)
        cpu, woken, since = cpu_seconds(pid), wakeups(pid), time.perf_counter()
        time.sleep(seconds)
        passed = time.perf_counter() - since
        idle_percent = (cpu_seconds(pid) - cpu) / passed * 100
        per_second = (wakeups(pid) - woken) / passed
        rss = rss_mib(pid)
        one, many = load(port, 1, min(seconds, 5)), load(port, 16, min(seconds, 5))
        after = rss_mib(pid)
    return (
        f"| {subject.name} | {rss:.1f} | {after:.1f} | {idle_percent:.3f} | {per_second:.1f} | {start_seconds * 1000:.0f} "
        f"| {one.per_second:,.0f} | {one.p99_ms:.2f} | {many.per_second:,.0f} | {many.p99_ms:.2f} |"
    )


def bench_daemons(seconds: int) -> None:
    print(
        "| nobody scrapes, then wrk | RSS MiB | after load | idle CPU % of a core | wake-ups/s | first scrape ms "
        "| scrapes/s, 1 client | p99 ms | 16 clients | p99 ms |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    port = free_port()
    for subject in subjects(port):
        print(bench_subject(subject, port, seconds), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="how long each daemon is watched while idle")
    parser.add_argument("--times", type=int, default=3000, help="how often each reading is repeated")
    options = parser.parse_args()
    bench_reading(options.times)
    bench_daemons(options.seconds)
