"""Measure the daemon on machines of different sizes, with simulated GPUs, real processes and open streams."""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from subjects import (
    HERE,
    children_of,
    cpu_seconds,
    idle,
    pss_mib,
    rss_mib,
    threads_of,
    written_bytes,
)

from simulators import nvml_parts, sample_nvml, sample_nvml_integrated
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Machine
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.many_clients import Crowd, connections
from support.memory_cgroup import memory_cgroup
from support.moving_memory import CopiedMachine
from support.paths import MACHINES
from support.sleeping_processes import sleepers

# The first scans open files that stay open: thousands, on a machine with as many processes.
SETTLE_SECONDS = 15.0
IN_A_CGROUP = '[collectors.cgroup]\nscope = "cgroup"\n'
STREAMS = "[web]\nmax_streams = 2000\n"


class Cost(Struct, frozen=True):
    """Cost of the daemon (`main`), of the helper that calls the driver, and of a bare reader beside them (`bare`).

    Wake-ups are those of daemon and helper.
    """

    main_percent: float
    helper_percent: float
    bare_percent: float
    rss_mib: float
    pss_mib: float
    helper_pss_mib: float
    threads: int
    wakeups: float


def machine_of(gpus: int, mig: int = 0) -> Machine | None:
    """Return this many H100, each one quarter used and with `mig` instances; None without GPUs."""
    if not gpus:
        return None
    model = sample_nvml.H100_MIG.gpus[0] if mig else sample_nvml.EIGHT_H100.gpus[0]
    return replace(
        sample_nvml.EIGHT_H100,
        gpus=tuple(
            replace(
                model,
                uuid=nvml_parts.uuid(0x8000 + slot),
                bus_id=f"00000000:{0x10 + slot:02X}:00.0",
                minor_number=slot,
                memory=nvml_parts.mib(81559, used=20210, reserved=479),
            )
            for slot in range(gpus)
        ),
    )


@contextmanager
def daemon_on(machine: Machine | None, *arguments: str, config: str = "") -> Iterator[RunningDaemon]:
    """Run a daemon with this machine's processes and memory, and the GPUs of a simulated driver."""
    with tempfile.TemporaryDirectory() as folder:
        environ = dict(WITHOUT_COVERAGE)
        if machine is not None:
            simulator = Simulator.of(Path(folder), machine)
            environ |= simulator.environ
            arguments = (f"--sysfs={MACHINES / '8x-h100' / 'sys'}", *arguments)
        with running_daemon(Path(folder), *arguments, config=config, environ=environ) as daemon:
            yield daemon


@contextmanager
def bare_reader() -> Iterator[int]:
    """Yield the pid of a process that reads the same files once a second, as a baseline for this machine."""
    with subprocess.Popen([sys.executable, "-S", "-E", HERE / "bare_reader.py"]) as child:
        try:
            yield child.pid
        finally:
            child.terminate()


def cost_of(daemon: RunningDaemon, seconds: float) -> Cost:
    """Measure a daemon without clients."""
    with bare_reader() as reader:
        time.sleep(SETTLE_SECONDS)
        helpers = children_of(daemon.pid)
        main, helper, bare = idle([[daemon.pid], helpers, [reader]], seconds)
    return Cost(
        main_percent=main.percent,
        helper_percent=helper.percent,
        bare_percent=bare.percent,
        rss_mib=rss_mib(daemon.pid),
        pss_mib=pss_mib(daemon.pid),
        helper_pss_mib=sum(map(pss_mib, helpers)),
        threads=threads_of(daemon.pid),
        wakeups=main.wakeups + helper.wakeups,
    )


def row(name: str, cost: Cost) -> str:
    return (
        f"| {name} | {cost.main_percent / cost.bare_percent:.1f} | {cost.helper_percent / cost.bare_percent:.1f} "
        f"| {cost.main_percent:.3f} | {cost.helper_percent:.3f} "
        f"| {cost.rss_mib:.1f} | {cost.pss_mib:.1f} | {cost.helper_pss_mib:.1f} | {cost.threads} "
        f"| {cost.wakeups:.1f} |"
    )


def bench_machines(seconds: float) -> None:
    """Measure by GPUs and by processes, and the cost of one more of each."""
    print(
        "| one tick a second, no client | × a bare read a second | helper × | CPU % of a core | helper % "
        "| RSS MiB | PSS MiB | helper PSS MiB | threads | wake-ups/s |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    gpus = {(0, 0): 0.0, (1, 0): 0.0, (8, 0): 0.0, (16, 0): 0.0, (16, 4): 0.0}
    for count, mig in gpus:
        with sleepers(300), daemon_on(machine_of(count, mig)) as daemon:
            found = cost_of(daemon, seconds)
        gpus[count, mig] = found.main_percent + found.helper_percent
        name = f"{count} GPUs" if not mig else f"{count} GPUs in {count * mig} MIG instances"
        print(row(f"{name}, 300 more processes", found), flush=True)
    bench_limit(seconds)
    bench_near_the_edge(seconds)
    processes = {100: 0.0, 1000: 0.0, 2000: 0.0, 5000: 0.0}
    for count in processes:
        with sleepers(count), daemon_on(machine_of(8)) as daemon:
            found = cost_of(daemon, seconds)
        processes[count] = found.main_percent + found.helper_percent
        print(row(f"8 GPUs, {count:,} more processes", found), flush=True)
    by_gpu = (gpus[16, 0] - gpus[1, 0]) / 15
    by_thousand = (processes[5000] - processes[100]) / 4.9
    print(f"\nOne more GPU: {by_gpu:.4f} % of a core; a thousand more processes: {by_thousand:.3f} %.\n")


def bench_streams(seconds: float) -> None:
    """Measure clients of the live page, each of which gets every tick."""
    print("| listeners | CPU % of a core | RSS MiB |\n|---|---:|---:|")
    request = b"GET /live?page=overview HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for count in (0, 200, 1000):
        with (
            daemon_on(None, config=STREAMS) as daemon,
            connections(daemon, count, request) as members,
            Crowd(members),
        ):
            time.sleep(SETTLE_SECONDS)
            before, began = cpu_seconds(daemon.pid), time.monotonic()
            time.sleep(seconds)
            part = (cpu_seconds(daemon.pid) - before) / (time.monotonic() - began) * 100
            print(f"| {count:,} | {part:.2f} | {rss_mib(daemon.pid):.1f} |", flush=True)
    print()


def bench_limit(seconds: float) -> None:
    """Measure with a container's limit, read once a second: that of the daemon's own cgroup."""
    with memory_cgroup(1 << 30) as limit:
        if limit is None:
            print("no limit can be set: the row of a container with a limit is missing")
            return
        with sleepers(300), daemon_on(None, config=IN_A_CGROUP) as daemon:
            limit.add(daemon.pid)
            found = cost_of(daemon, seconds)
            assert "cgroup" in {one["target"] for one in daemon.get("/api/v1/pressure").json}, (
                "the limit was not found"
            )
    print(row("0 GPUs, 300 more processes, a limit", found), flush=True)


def bench_near_the_edge(seconds: float) -> None:
    """Measure a DGX Spark that serves a model all day: at rest by its use, and with memory that always moves."""
    for used, moves in ((0.40, False), (0.64, False), (0.85, False), (0.92, False), (0.64, True)):
        with tempfile.TemporaryDirectory() as folder:
            machine = CopiedMachine(MACHINES / "gb10", Path(folder, "machine"))
            machine.use(used)
            environ = {**WITHOUT_COVERAGE, **Simulator.of(Path(folder), sample_nvml_integrated.GB10).environ}
            with (
                running_daemon(Path(folder), *machine.roots, environ=environ) as daemon,
                machine.moving() if moves else nullcontext(),
            ):
                found = cost_of(daemon, seconds)
        print(row(f"DGX Spark, {used:.0%} used, {'moving' if moves else 'at rest'}", found), flush=True)


def bench_requests(times: int = 300, rounds: int = 5) -> None:
    """Measure single requests of a client with a persistent connection, in several alternating rounds.

    The least of the medians and of the 99th percentiles counts, as interference only makes a round slower.
    """
    paths = (
        "/metrics",
        "/healthz",
        "/api/v1/snapshot",
        "/api/v1/history?series=pool.ram.used_bytes&points=300",
        "/",
        "/processes",
    )
    print("| request | median ms | 99th percentile ms | bytes |\n|---|---:|---:|---:|")
    with sleepers(300), daemon_on(machine_of(8)) as daemon:
        time.sleep(SETTLE_SECONDS)
        found = [{path: latencies(daemon.port, path, times) for path in paths} for _ in range(rounds)]
    for path in paths:
        took = [turn[path][0] for turn in found]
        median = min(turn[len(turn) // 2] for turn in took)
        slow = min(turn[-max(1, len(turn) // 100)] for turn in took)
        print(f"| `{path}` | {median:.2f} | {slow:.2f} | {found[-1][path][1]:,} |")
    print()


def latencies(port: int, path: str, times: int) -> tuple[list[float], int]:
    connection, found, size = http.client.HTTPConnection("127.0.0.1", port, timeout=10), [], 0
    for number in range(times + 1):
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        size = len(answer.read())
        if answer.status != 200:
            raise SystemExit(f"{path} answers {answer.status}")
        if number:  # the first may have to build the pages
            found.append((time.perf_counter() - began) * 1000)
    connection.close()
    return sorted(found), size


def bench_wear(seconds: float) -> None:
    """Measure writes to storage with a state folder, at low pressure."""
    with tempfile.TemporaryDirectory() as state, daemon_on(None, "--state-dir", state) as daemon:
        time.sleep(SETTLE_SECONDS)
        before, began = written_bytes(daemon.pid), time.monotonic()
        time.sleep(seconds)
        per_day = (written_bytes(daemon.pid) - before) / (time.monotonic() - began) * 86_400
        print(f"Written to storage at low pressure: {per_day / 1e6:.0f} MB a day (over {seconds:.0f} s).\n")
