"""Measure the cost of watching: our reading against bare reads of the same files, our daemon against its peers."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from bench_caches import bench_caches
from bench_clients import bench_memory, bench_scraped, bench_start
from bench_full import bench_full
from bench_growth import bench_growth
from bench_history import bench_history
from bench_machines import bench_machines, bench_requests, bench_streams, bench_wear
from bench_peers import bench_peers
from bench_rest import bench_rest
from bench_store import bench_store
from bench_tick import bench_tick
from cost_tables import write_tables
from sheet import Sheet, disagreement, read_run, write_run

from memwatch.core.clock import SystemClock
from memwatch.core.collectors import buddyinfo, list_collectors, processes, psi, vmstat
from memwatch.core.collectors.base import CollectorEntry, Host
from memwatch.core.linux.files import KeptFile, Roots
from memwatch.core.linux.meminfo import Meminfo
from memwatch.core.linux.process_files import STAT_BYTES, read_at
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.loop import Monitor
from support.monitors import create_monitor
from support.paths import ROOT
from support.sleeping_processes import sleepers

OUT = ROOT / "out" / "bench.json"
PSUTIL_FIELDS = ["name", "create_time", "memory_info"]


def costs_of(works: Mapping[str, Callable[[], object]], times: int, rounds: int = 150) -> dict[str, float]:
    """Return microseconds of CPU for one call of each, the best of many rounds of `times` calls.

    Rounds are short and alternate, so that interference from other programs affects all of them alike.
    """
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            started = time.thread_time_ns()
            for _ in range(times):
                work()
            best[name] = min(best[name], (time.thread_time_ns() - started) / times / 1000)
    return best


def bench_reading(times: int) -> None:
    """Measure the host's files: bare, parsed, as checked model, and within a whole tick."""
    parsers = parsers_of_host()
    files = [(KeptFile(Path(name)), parse) for name, parse in parsers.items() if Path(name).exists()]
    descriptors = [os.open(file.path, os.O_RDONLY) for file, _ in files]
    quick = quick_sources()
    collectors = [entry.make() for entry in quick if entry.name in ("meminfo", "psi", "vmstat", "buddyinfo")]

    bare = "bare pread of meminfo, pressure/memory, vmstat, buddyinfo"
    rows = costs_of(
        {
            bare: lambda: [os.pread(one, 8192, 0) for one in descriptors],
            "the same, read and parsed": lambda: [parse(file.read()) for file, parse in files],
            "the same, made into checked pools, nodes and counters": lambda: [one.collect() for one in collectors],
            "a tick: every collector read, judged, stored, published": monitor_of(quick).tick,
        },
        max(1, times // 10),
    )
    bare_second, second = a_second(parsers, max(1, times // 50))
    print("| hot caches, one thread | µs of CPU | ratio |\n|---|---:|---:|")
    for name, cost in rows.items():
        print(f"| {name} | {cost:.1f} | {cost / rows[bare]:.1f} |")
    print(f"| bare pread as often as each is read: buddyinfo every fifth second | {bare_second:.1f} | 1.0 |")
    words = "the same, parsed; pressure only where it changed"
    print(f"| {words} | {second:.1f} | {second / bare_second:.1f} |\n")


def parsers_of_host() -> dict[str, Callable[[bytes], object]]:
    """Return the files that every machine has, and their parsers."""
    return {
        "/proc/meminfo": Meminfo().parse,
        "/proc/pressure/memory": psi.parse_pressure,
        "/proc/vmstat": vmstat.Vmstat(4096).parse,
        "/proc/buddyinfo": buddyinfo.parse_buddyinfo,
    }


def quick_sources() -> list[CollectorEntry]:
    return [entry for entry in list_collectors(Host()) if not entry.may_block]


def monitor_of(entries: Sequence[CollectorEntry]) -> Monitor:
    return create_monitor(
        Sampler(entries, SystemClock()), SystemClock(), MonitorRules(), Identity("bench", "bench")
    )


def bench_pauses() -> None:
    """Measure bare reads and a tick after pauses of different length."""
    descriptors = [os.open(name, os.O_RDONLY) for name in parsers_of_host() if Path(name).exists()]
    tick = monitor_of(quick_sources()).tick
    for _ in range(100):
        tick()
    bench_caches({"bare pread": lambda: [os.pread(one, 8192, 0) for one in descriptors], "a tick": tick})
    for one in descriptors:
        os.close(one)


def a_second(parsers: Mapping[str, Callable[[bytes], object]], times: int) -> tuple[float, float]:
    """Return the cost of the bare reads of an average second, and of parsing them."""
    files = {name: KeptFile(Path(name)) for name in parsers if Path(name).exists()}
    descriptors = {name: os.open(name, os.O_RDONLY) for name in files}
    last: dict[str, bytes] = {}

    def bare() -> None:
        for second in range(5):
            for name, one in descriptors.items():
                if second == 0 or name != "/proc/buddyinfo":
                    os.pread(one, 8192, 0)

    def parsed() -> None:
        for second in range(5):
            for name, file in files.items():
                if second == 0 or name != "/proc/buddyinfo":
                    data = file.read()
                    if name != "/proc/pressure/memory" or data != last.get(name):
                        parsers[name](data)
                        last[name] = data

    found = costs_of({"bare": bare, "parsed": parsed}, times)
    for file in files.values():
        file.close()
    for one in descriptors.values():
        os.close(one)
    return found["bare"] / 5, found["parsed"] / 5


def bench_processes(count: int) -> None:
    """Measure a repeated scan of this many processes with 20 listed: ours, the plain ways, and psutil's."""
    with sleepers(count):
        collector = processes.Collector(Roots(), top=20, page_size=os.sysconf("SC_PAGE_SIZE"))
        collector.collect()
        collector.collect()
        folder = os.open("/proc", os.O_RDONLY)
        works: dict[str, Callable[[], object]] = {
            "psutil: name, start and memory of each": lambda: list(psutil.process_iter(PSUTIL_FIELDS)),
            "stat of each opened, read and closed": lambda: each_file(folder, "stat"),
            "statm of each opened, read and closed": lambda: each_file(folder, "statm"),
            "ours: all of them, owners and cgroups too": collector.collect,
        }
        costs = {name: cost / 1000 for name, cost in costs_of(works, 1, rounds=10).items()}
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
            read_at(folder, f"{name}/{file}", STAT_BYTES)


def steal_ratio(before: Any, after: Any) -> float:
    """Return the steal time of a virtual machine as a fraction of its busy time, from psutil's `cpu_times`.

    It is charged to the running program: above a few percent, absolute values say more about the host.
    """
    passed = {name: getattr(after, name) - getattr(before, name) for name in after._fields}
    wanted = sum(passed.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return float(passed.get("steal", 0.0) / wanted) if wanted else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="duration of each idle measurement")
    parser.add_argument("--times", type=int, default=3000, help="repetitions of each reading")
    parser.add_argument("--processes", type=int, default=2000, help="number of processes to scan")
    parser.add_argument(
        "--only", help="comma-separated list of sections; figures of today stay in the file for the others"
    )
    parser.add_argument("--plot", type=Path, help="SVG file for the comparison with peers")
    parser.add_argument("--json", type=Path, default=OUT, help=f"file for the figures  [default: {OUT.name}]")
    parser.add_argument("--against", type=Path, help="figures of an earlier run: print where the two disagree")
    parser.add_argument("--docs", type=Path, help="only write these figures into README and docs/quality/cost.md")
    options = parser.parse_args()
    if options.docs is not None:
        write_tables(read_run(options.docs))
        return
    # With byte code, as every installation has it: without, the helper of a GPU takes 10 MiB more.
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    sheet = Sheet()
    if options.only and options.json.exists():
        sheet.keep(read_run(options.json))
    sections: dict[str, Callable[[], None]] = {
        "rest": lambda: bench_rest(sheet, 2 * options.seconds),
        "machines": lambda: bench_machines(sheet, options.seconds),
        "tick": lambda: bench_tick(sheet),
        "memory": lambda: bench_memory(sheet),
        "start": lambda: bench_start(sheet),
        "scraped": lambda: bench_scraped(sheet, options.seconds),
        "growth": lambda: bench_growth(sheet),
        "streams": lambda: bench_streams(sheet, options.seconds),
        "requests": lambda: bench_requests(sheet),
        "peers": lambda: bench_peers(sheet, options.seconds, options.plot),
        "wear": lambda: bench_wear(sheet, 3 * options.seconds),
        "store": lambda: bench_store(sheet),
        "full": bench_full,
        "reading": lambda: bench_reading(options.times),
        "caches": bench_pauses,
        "history": bench_history,
        "processes": lambda: bench_processes(options.processes),
    }
    wanted = options.only.split(",") if options.only else list(sections)
    for name in wanted:
        if name not in sections:
            parser.error(f"--only is {name!r}: use some of {', '.join(sections)}")
    print(f"{sheet.run.machine}, {sheet.run.date}\n")
    for name in wanted:
        run_section(name, sections[name])
        write_run(sheet.run, options.json)  # also of a run that ends early
    print("Alert latency: `make bench-alerts`.\n")
    if options.against is not None:
        print("\n".join(disagreement(sheet.run, read_run(options.against))))


def run_section(name: str, section: Callable[[], None]) -> None:
    print(f"### {name}\n", flush=True)
    before, began = psutil.cpu_times(), time.monotonic()
    load = os.getloadavg()[0]
    section()
    print(
        f"{time.monotonic() - began:.0f} s, steal time {steal_ratio(before, psutil.cpu_times()):.0%}, "
        f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after.\n",
        flush=True,
    )


if __name__ == "__main__":
    main()
