"""Measure the growth of the daemon's cost with the machine and its clients: GPUs, processes, cgroups, NUMA nodes,
open pages, neighbours.

The exponent is the slope of a line through the logarithms of size and cost: 0 if a larger machine costs the same, 1
if cost grows in proportion. A constant part hides growth, so that between the two largest is printed as well. All
sizes of all kinds run at the same time.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path

from bench_clients import get
from bench_machines import STREAMS, daemon_on, machine_of
from msgspec import Struct
from sheet import Column, Sheet
from subjects import children_of, rss_mib, spent

from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.many_clients import Crowd, connections
from support.mutable_machine import MutableMachine
from support.neighbours import event, neighbours, serving, streams, tick_data
from support.process_folders import add_process, stat_line, statm_line
from support.sleeping_processes import sleepers

FEW_PROCESSES = 100
CONTAINER_BYTES = 64 << 20
FIRST_PID = 50_000
# Nodes of the captured machine; further ones are copies of its last.
CAPTURED_NODES = 8
STRETCHES, STRETCH_SECONDS = 3, 10.0
SETTLE_SECONDS = 25.0
# Above it, a figure grows faster than what it is about.
MAX_EXPONENT = 1.05
OPEN_PAGE = b"GET /live?page=overview HTTP/1.1\r\nHost: localhost\r\n\r\n"
Machines = Callable[[int], AbstractContextManager[RunningDaemon]]


class Growth(Struct, frozen=True):
    """Cost of one size: ms of CPU of a second with its helper, without clients; ms of CPU of a cold scrape; MiB."""

    second_ms: float
    scrape_ms: float
    rss_mib: float


@contextmanager
def gpus(count: int) -> Iterator[RunningDaemon]:
    with daemon_on(machine_of(count)) as daemon:
        yield daemon


@contextmanager
def instances(count: int) -> Iterator[RunningDaemon]:
    """Run on GPUs with four MIG instances each."""
    with daemon_on(machine_of(count // 4, mig=4)) as daemon:
        yield daemon


@contextmanager
def processes(count: int) -> Iterator[RunningDaemon]:
    """Run on a workstation with this many processes, as files: the kernel's own take longer to read."""
    with changed_machine("workstation") as machine:
        for number in range(count):
            files = {"cgroup": b"0::/system.slice/job%d.service\n" % (number % 40), "statm": statm_line(5000)}
            add_process(machine.folder / "proc", stat_line(FIRST_PID + number, "worker", 5000), **files)
        with running_on(machine) as daemon:
            yield daemon


@contextmanager
def containers(count: int) -> Iterator[RunningDaemon]:
    """Run on a workstation with this many containers of one process, each with a limit of its memory."""
    with changed_machine("workstation") as machine:
        for number in range(count):
            add_container(machine.folder, number)
        with running_on(machine) as daemon:
            yield daemon


@contextmanager
def nodes(count: int) -> Iterator[RunningDaemon]:
    """Run on a server with this many nodes, of 32 cores and 256 GiB each."""
    with changed_machine("numa-server-2tib") as machine:
        use_nodes(machine.folder, count)
        with running_on(machine) as daemon:
            yield daemon


def use_nodes(machine: Path, count: int) -> None:
    """Remove nodes, or add copies of the last one."""
    parent, buddyinfo = machine / "sys/devices/system/node", machine / "proc/buddyinfo"
    last = CAPTURED_NODES - 1
    for number in range(count, CAPTURED_NODES):
        shutil.rmtree(parent / f"node{number}")
    for number in range(CAPTURED_NODES, count):
        shutil.copytree(parent / f"node{last}", parent / f"node{number}", symlinks=True)
        meminfo = parent / f"node{number}/meminfo"
        meminfo.write_text(meminfo.read_text().replace(f"Node {last} ", f"Node {number} "))
    lines = buddyinfo.read_text().splitlines(keepends=True)
    kept = [line for line in lines if int(line.split()[1].rstrip(",")) < count]
    more = [line for line in lines if line.startswith(f"Node {last},")]
    kept += [
        line.replace(f"Node {last},", f"Node {number},") for number in range(CAPTURED_NODES, count) for line in more
    ]
    buddyinfo.write_text("".join(kept))
    multiply_memory(machine / "proc/meminfo", count / CAPTURED_NODES)


@contextmanager
def pages(count: int) -> Iterator[RunningDaemon]:
    """Run with this many open pages, which get each tick."""
    with (
        daemon_on(None, config=STREAMS) as daemon,
        connections(daemon, count, OPEN_PAGE) as members,
        Crowd(members),
    ):
        yield daemon


@contextmanager
def followed(count: int) -> Iterator[RunningDaemon]:
    """Run with this many neighbours, each of which sends a tick a second."""
    with ExitStack() as stack:
        urls = {f"machine{number}": stack.enter_context(neighbour(number)) for number in range(count)}
        with daemon_on(None, config=neighbours(urls)) as daemon:
            yield daemon


def neighbour(number: int) -> AbstractContextManager[str]:
    name = f"machine{number}"
    return serving(streams(lambda: event(tick_data(run=name, host=name)), 1.0))


def multiply_memory(meminfo: Path, factor: float) -> None:
    """Multiply all sizes, so that the nodes and the machine agree."""
    meminfo.write_text(re.sub(r"\d+(?= kB)", lambda found: str(int(int(found[0]) * factor)), meminfo.read_text()))


def add_container(machine: Path, number: int) -> None:
    name = f"system.slice/docker-{sha256(str(number).encode()).hexdigest()}.scope"
    add_process(
        machine / "proc",
        stat_line(FIRST_PID + number, "worker", CONTAINER_BYTES // 4096),
        statm=statm_line(CONTAINER_BYTES // 4096),
        cgroup=f"0::/{name}\n".encode(),
    )
    group = machine / "sys/fs/cgroup" / name
    group.mkdir(parents=True)
    files = {
        "memory.current": CONTAINER_BYTES,
        "memory.max": 2 * CONTAINER_BYTES,
        "memory.high": "max",
        "memory.stat": f"anon {CONTAINER_BYTES}\nfile 0\ninactive_file 0\nslab_reclaimable 0",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0",
        "cgroup.procs": FIRST_PID + number,
    }
    for file, text in files.items():
        (group / file).write_text(f"{text}\n")


@contextmanager
def changed_machine(name: str) -> Iterator[MutableMachine]:
    with tempfile.TemporaryDirectory() as folder:
        yield MutableMachine.of(name, Path(folder, "machine"))


@contextmanager
def running_on(machine: MutableMachine) -> Iterator[RunningDaemon]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_daemon(Path(folder), *machine.arguments, environ=dict(WITHOUT_COVERAGE)) as daemon,
    ):
        yield daemon


SIZES: Mapping[str, tuple[Machines, tuple[int, ...]]] = {
    "GPUs": (gpus, (1, 2, 4, 8, 16)),
    "MIG instances, 4 on a GPU": (instances, (4, 16, 64)),
    "processes": (processes, (300, 1200, 5000)),
    "containers with a limit": (containers, (30, 120, 500, 2000)),
    "NUMA nodes of 256 GiB": (nodes, (1, 2, 4, 8, 16)),
    "open pages": (pages, (10, 50, 200)),
    "neighbours": (followed, (3, 10, 30)),
}


def growth_of(daemons: Sequence[RunningDaemon]) -> list[Growth]:
    """Measure without clients, then scraped once a second."""
    pids = [[daemon.pid, *children_of(daemon.pid)] for daemon in daemons]
    memory = [rss_mib(daemon.pid) for daemon in daemons]
    quiet, _ = costs_of(pids, [])
    scraped, scrapes = costs_of(pids, [daemon.port for daemon in daemons])
    return [
        Growth(1000 * alone, max(0.0, 1000 * (busy - alone) / scrapes), held)
        for alone, busy, held in zip(quiet, scraped, memory, strict=True)
    ]


def costs_of(pids: Sequence[Sequence[int]], ports: Sequence[int]) -> tuple[list[float], float]:
    """Return the least CPU seconds a second of each, and scrapes a second of each of `ports`."""
    found, scrapes, began = [], 0, time.monotonic()
    for _ in range(STRETCHES):
        before, at = [spent(group)[0] for group in pids], time.monotonic()
        while time.monotonic() < at + STRETCH_SECONDS:
            for port in ports:
                get(port, "/metrics")
            scrapes += 1
            time.sleep(1.0)
        passed = time.monotonic() - at
        found.append([(spent(group)[0] - then) / passed for group, then in zip(pids, before, strict=True)])
    return list(map(min, zip(*found, strict=True))), scrapes / (time.monotonic() - began)


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float | None:
    """Return the slope of the line of least squares through the logarithms; None if a cost is 0."""
    if min(costs) <= 0:
        return None
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    over = sum((one - x_mean) ** 2 for one in x)
    return sum((one - x_mean) * (other - y_mean) for one, other in zip(x, y, strict=True)) / over


def bench_growth(sheet: Sheet) -> None:
    fast = []
    figures = ("ms of CPU a second", "ms of CPU a scrape", "RSS MiB")
    sizes_head = Column("smallest"), Column("largest")
    columns = [Column(f"{figure}, {head.name}") for figure in figures for head in sizes_head]
    slopes = [Column(f"exponent of {name}", ".2f", is_exact=False) for name in ("a second", "a scrape", "memory")]
    last = [Column(f"largest two, {name}", ".2f", is_exact=False) for name in ("a second", "a scrape")]
    sheet.head("growth", "more of", *columns, *slopes, *last)
    for (name, (_, sizes)), found in zip(SIZES.items(), measure_all(), strict=True):
        costs = [[one.second_ms for one in found], [one.scrape_ms for one in found], [one.rss_mib for one in found]]
        ends = [cost[place] for cost in costs for place in (0, -1)]
        slope = [exponent(sizes, cost) for cost in costs]
        step = [exponent(sizes[-2:], cost[-2:]) for cost in costs[:2]]
        row = f"{name}: {', '.join(f'{size:,}' for size in sizes)}"
        sheet.row(row, *ends, *slope, *step)
        fast += [f"{name}: {one:.2f}" for one in (*slope, *step) if one is not None and one > MAX_EXPONENT]
    sheet.end(f"Faster than in proportion: {', '.join(fast) or 'nothing'}.", "")


def measure_all() -> list[list[Growth]]:
    """Return the growth of each kind by size."""
    with ExitStack() as stack:
        stack.enter_context(sleepers(FEW_PROCESSES))
        kinds = [[stack.enter_context(machine(size)) for size in sizes] for machine, sizes in SIZES.values()]
        time.sleep(SETTLE_SECONDS)
        found = iter(growth_of([daemon for kind in kinds for daemon in kind]))
        return [[next(found) for _ in kind] for kind in kinds]
