"""What watching costs: our reading beside a bare read of the same files, our daemon beside its peers."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from bench_history import bench_history
from bench_store import bench_store
from subjects import Subject, cpu_seconds, free_port, load, rss_mib, running, subjects, wakeups

from memwatch.clock import SystemClock
from memwatch.collector import KeptFile, Roots
from memwatch.collectors import CollectorOptions, buddyinfo, enlist, memory, processes, psi, vmstat
from memwatch.collectors._process_files import STAT_BYTES, read_in
from memwatch.monitor import Identity, Monitor, Rules
from memwatch.sampler import Sampler

sys.path.append(str(Path(__file__).parent.parent))
from sleepers import sleepers

WITNESSED = ["name", "create_time", "memory_info"]


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
    """The host's files: bare, read and parsed, made into a checked model, and a whole tick around that."""
    layout = memory.layout_of(Path("/proc/meminfo").read_bytes())
    parsers: dict[str, Callable[[bytes], object]] = {
        "/proc/meminfo": lambda data: memory.parse_meminfo(data, layout),
        "/proc/pressure/memory": psi.parse_pressure,
        "/proc/vmstat": vmstat.parse_vmstat,
        "/proc/buddyinfo": buddyinfo.parse_buddyinfo,
    }
    files = [(KeptFile(Path(name)), parse) for name, parse in parsers.items() if Path(name).exists()]
    descriptors = [os.open(file.path, os.O_RDONLY) for file, _ in files]
    quick = [entry for entry in enlist(Roots(), CollectorOptions()) if not entry.may_block]
    collectors = [entry.make() for entry in quick if entry.name in ("memory", "psi", "vmstat", "buddyinfo")]
    monitor = Monitor(Sampler(quick, SystemClock()), SystemClock(), Rules(), Identity("bench", "bench"))

    bare = cpu_of(lambda: [os.pread(one, 8192, 0) for one in descriptors], times)
    rows = {
        "bare pread of meminfo, pressure/memory, vmstat, buddyinfo": bare,
        "the same, read and parsed": cpu_of(lambda: [parse(file.read()) for file, parse in files], times),
        "the same, made into checked pools, nodes and counters": cpu_of(
            lambda: [one.collect() for one in collectors], times
        ),
        "a tick as it comes each second (vmstat and buddyinfo every 5 s)": cpu_of(monitor.tick, times),
    }
    print("| hot caches, one thread | µs of CPU | ratio |\n|---|---:|---:|")
    for name, cost in rows.items():
        print(f"| {name} | {cost:.1f} | {cost / bare:.1f} |")
    print()


def bench_processes(count: int) -> None:
    """A repeated look at so many processes, of which 20 are listed: ours, the plain ways, and psutil's."""
    with sleepers(count):
        collector = processes.Collector(Roots(), top=20, page_size=os.sysconf("SC_PAGE_SIZE"))
        collector.collect()
        collector.collect()
        folder = os.open("/proc", os.O_RDONLY)
        rows = {
            "psutil: name, start and memory of each": lambda: list(psutil.process_iter(WITNESSED)),
            "stat of each opened, read and closed": lambda: each_file(folder, "stat"),
            "statm of each opened, read and closed": lambda: each_file(folder, "statm"),
            "ours: all of them, owners and cgroups too": collector.collect,
        }
        costs = {name: cpu_of(work, 2) / 1000 for name, work in rows.items()}
        seen = len([name for name in os.listdir(folder) if name.isdecimal()])
        collector.close()
        os.close(folder)
    ours = costs["ours: all of them, owners and cgroups too"]
    print(f"| {seen:,} processes, a repeated look | ms of CPU | ratio |\n|---|---:|---:|")
    for name, cost in costs.items():
        print(f"| {name} | {cost:.1f} | {cost / ours:.1f} |")
    print()


def each_file(folder: int, file: str) -> None:
    for name in os.listdir(folder):
        if name.isdecimal():
            read_in(folder, f"{name}/{file}", STAT_BYTES)


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
        f"| {subject.name} | {rss:.1f} | {after:.1f} | {idle_percent:.3f} | {per_second:.1f} "
        f"| {start_seconds * 1000:.0f} | {one.per_second:,.0f} | {one.p99_ms:.2f} "
        f"| {many.per_second:,.0f} | {many.p99_ms:.2f} |"
    )


def bench_daemons(seconds: int) -> None:
    print(
        "| nobody scrapes, then wrk | RSS MiB | after load | idle CPU % of a core | wake-ups/s | first scrape ms "
        "| scrapes/s, 1 client | p99 ms | 16 clients | p99 ms |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    port = free_port()
    for subject in subjects(port):
        print(bench_subject(subject, port, seconds), flush=True)


def bench_judges() -> None:
    """How early we and others speak, how often in vain, and how often each changes its mind."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from pressure_judges import table

    print(table(), end="\n\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="how long each daemon is watched while idle")
    parser.add_argument("--times", type=int, default=3000, help="how often each reading is repeated")
    parser.add_argument("--processes", type=int, default=2000, help="how many processes to look at")
    options = parser.parse_args()
    bench_judges()
    bench_reading(options.times)
    bench_history()
    bench_store()
    bench_processes(options.processes)
    bench_daemons(options.seconds)
