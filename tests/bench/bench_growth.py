"""Measure the growth of the daemon's cost with the machine: GPUs, instances, processes, containers, NUMA nodes.

The exponent is that of size in cost: 0 if a larger machine costs the same, 1 if cost grows in proportion.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path

from bench_machines import SETTLE_SECONDS, bare_reader, daemon_on, machine_of
from msgspec import Struct
from subjects import children_of, idle, rss_mib

from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.mutable_machine import MutableMachine
from support.process_folders import add_process, stat_line, statm_line
from support.sleeping_processes import sleepers

FEW_PROCESSES = 100
CONTAINER_BYTES = 64 << 20
FIRST_PID = 50_000
Machines = Callable[[int], AbstractContextManager[RunningDaemon]]


class Growth(Struct, frozen=True):
    """Cost of one size: × a bare read a second, with the helper; resident memory of the daemon."""

    cost: float
    rss_mib: float


@contextmanager
def gpus(count: int) -> Iterator[RunningDaemon]:
    with sleepers(FEW_PROCESSES), daemon_on(machine_of(count)) as daemon:
        yield daemon


@contextmanager
def instances(count: int) -> Iterator[RunningDaemon]:
    """Run on GPUs with four MIG instances each."""
    with sleepers(FEW_PROCESSES), daemon_on(machine_of(count // 4, mig=4)) as daemon:
        yield daemon


@contextmanager
def processes(count: int) -> Iterator[RunningDaemon]:
    with sleepers(count), daemon_on(None) as daemon:
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
    """Run on a server with this many of its eight nodes, of 32 cores and 256 GiB each."""
    with changed_machine("numa-server-2tib") as machine:
        for folder in (machine.folder / "sys/devices/system/node").glob("node*"):
            if int(folder.name[4:]) >= count:
                shutil.rmtree(folder)
        buddyinfo = machine.folder / "proc/buddyinfo"
        lines = buddyinfo.read_text().splitlines(keepends=True)
        buddyinfo.write_text("".join(line for line in lines if int(line.split()[1].rstrip(",")) < count))
        reduce_memory(machine.folder / "proc/meminfo", count / 8)
        with running_on(machine) as daemon:
            yield daemon


def reduce_memory(meminfo: Path, factor: float) -> None:
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
    "GPUs": (gpus, (1, 4, 16)),
    "MIG instances, 4 on a GPU": (instances, (4, 16, 64)),
    "processes": (processes, (300, 1200, 5000)),
    "containers with a limit": (containers, (30, 120, 500)),
    "NUMA nodes of 256 GiB": (nodes, (1, 2, 8)),
}


def growth_of(daemon: RunningDaemon, seconds: float) -> Growth:
    with bare_reader() as reader:
        time.sleep(SETTLE_SECONDS)
        found, bare = idle([[daemon.pid, *children_of(daemon.pid)], [reader]], seconds)
        return Growth(found.percent / bare.percent, rss_mib(daemon.pid))


def exponent(sizes: tuple[int, ...], costs: list[float]) -> float:
    """Return the slope between the smallest and the largest machine, both axes logarithmic."""
    return math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0])


def bench_growth(seconds: float) -> None:
    print("| more of | sizes | cost, × a bare read | exponent | RSS MiB |\n|---|---|---|---:|---|")
    for name, (machine, sizes) in SIZES.items():
        found = []
        for size in sizes:
            with machine(size) as daemon:
                found.append(growth_of(daemon, seconds))
        costs = [one.cost for one in found]
        shown = (f"{cost:.1f}" for cost in costs)
        memory = (f"{one.rss_mib:.1f}" for one in found)
        print(
            f"| {name} | {', '.join(f'{size:,}' for size in sizes)} | {', '.join(shown)} "
            f"| {exponent(sizes, costs):.2f} | {', '.join(memory)} |",
            flush=True,
        )
    print()


if __name__ == "__main__":
    bench_growth(40.0)
