"""Measure the daemon on machines of different sizes, with simulated GPUs, real processes and open streams."""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from sheet import Column, Sheet
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

from simulators import nvml_parts, sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Machine
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.many_clients import Crowd, connections
from support.memory_cgroup import memory_cgroup
from support.paths import MACHINES
from support.sleeping_processes import sleepers

# The first scans open files that stay open: thousands, on a machine with as many processes.
SETTLE_SECONDS = 15.0
READERS = 4
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


def costs_of(daemons: Sequence[RunningDaemon], seconds: float) -> list[Cost]:
    """Measure daemons without clients, all at the same time, beside several bare readers."""
    with ExitStack() as stack:
        readers = [stack.enter_context(bare_reader()) for _ in range(READERS)]
        time.sleep(SETTLE_SECONDS)
        helpers = [children_of(daemon.pid) for daemon in daemons]
        found = idle([[daemon.pid] for daemon in daemons] + helpers + [[reader] for reader in readers], seconds)
    bare = statistics.mean(one.percent for one in found[2 * len(daemons) :])
    return [
        Cost(
            main_percent=found[number].percent,
            helper_percent=found[len(daemons) + number].percent,
            bare_percent=bare,
            rss_mib=rss_mib(daemon.pid),
            pss_mib=pss_mib(daemon.pid),
            helper_pss_mib=sum(map(pss_mib, helpers[number])),
            threads=threads_of(daemon.pid),
            wakeups=found[number].wakeups + found[len(daemons) + number].wakeups,
        )
        for number, daemon in enumerate(daemons)
    ]


COLUMNS = (
    Column("CPU %", ".3f"),
    Column("× a bare read"),
    Column("helper CPU %", ".3f"),
    Column("helper × a bare read"),
    Column("RSS MiB"),
    Column("PSS MiB", is_exact=False),
    Column("helper PSS MiB"),
    Column("threads", ".0f"),
    Column("wake-ups/s, both"),
)


def add_row(sheet: Sheet, name: str, cost: Cost) -> None:
    sheet.row(
        name,
        cost.main_percent,
        cost.main_percent / cost.bare_percent,
        cost.helper_percent,
        cost.helper_percent / cost.bare_percent,
        cost.rss_mib,
        cost.pss_mib,
        cost.helper_pss_mib or None,
        cost.threads,
        cost.wakeups,
    )


def bench_machines(sheet: Sheet, seconds: float) -> None:
    """Measure by GPUs and by processes, and the cost of one more of each."""
    sheet.head("machines", "one tick a second, no client", *COLUMNS)
    gpus = {(0, 0): 0.0, (1, 0): 0.0, (8, 0): 0.0, (16, 0): 0.0, (16, 4): 0.0}
    with ExitStack() as stack:
        stack.enter_context(sleepers(300))
        daemons = [stack.enter_context(daemon_on(machine_of(*size))) for size in gpus]
        limit = stack.enter_context(memory_cgroup(1 << 30))
        if limit is not None:
            daemons.append(stack.enter_context(daemon_on(None, config=IN_A_CGROUP)))
            limit.add(daemons[-1].pid)
        found = costs_of(daemons, seconds)
    for (count, mig), cost in zip(gpus, found, strict=False):
        gpus[count, mig] = cost.main_percent + cost.helper_percent
        name = f"{count or 'no'} GPU{'s' * (count > 1)}{f' in {count * mig} MIG instances' if mig else ''}"
        add_row(sheet, f"{name}, 300 processes", cost)
    if limit is not None:
        add_row(sheet, "no GPU, 300 processes, in a container with a limit", found[-1])
    processes = {100: 0.0, 2000: 0.0, 5000: 0.0}
    for count in processes:
        with sleepers(count), daemon_on(machine_of(8)) as daemon:
            (cost,) = costs_of([daemon], seconds)
        processes[count] = cost.main_percent + cost.helper_percent
        add_row(sheet, f"8 GPUs, {count:,} processes", cost)
    by_gpu = (gpus[16, 0] - gpus[1, 0]) / 15
    by_thousand = (processes[5000] - processes[100]) / 4.9
    limited = "" if limit is not None else "No limit can be set here: the row of a container is missing. "
    sheet.end(
        f"{limited}One more GPU: {by_gpu:.4f} % of a core; a thousand more processes: {by_thousand:.3f} %.", ""
    )


def bench_streams(sheet: Sheet, seconds: float) -> None:
    """Measure clients of the live page, each of which gets every tick."""
    sheet.head("streams", "open pages", Column("CPU %", ".2f"), Column("RSS MiB"))
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
            sheet.row(f"{count:,}", part, rss_mib(daemon.pid))
    sheet.end()


def bench_requests(sheet: Sheet, times: int = 300, rounds: int = 5) -> None:
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
    columns = Column("median ms", ".2f", is_exact=False), Column("99th percentile ms", ".2f", is_exact=False)
    sheet.head("requests", "request", *columns, Column("bytes", ",.0f"))
    with sleepers(300), daemon_on(machine_of(8)) as daemon:
        time.sleep(SETTLE_SECONDS)
        found = [{path: latencies(daemon.port, path, times) for path in paths} for _ in range(rounds)]
    for path in paths:
        took = [turn[path][0] for turn in found]
        median = min(turn[len(turn) // 2] for turn in took)
        slow = min(turn[-max(1, len(turn) // 100)] for turn in took)
        sheet.row(f"`{path}`", median, slow, found[-1][path][1])
    sheet.end()


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


def bench_wear(sheet: Sheet, seconds: float) -> None:
    """Measure writes to storage with a state folder, at low pressure."""
    sheet.head("wear", "state folder, level OK, this machine", Column("written MB/day", ".0f", is_exact=False))
    with tempfile.TemporaryDirectory() as state, daemon_on(None, "--state-dir", state) as daemon:
        time.sleep(SETTLE_SECONDS)
        before, began = written_bytes(daemon.pid), time.monotonic()
        time.sleep(seconds)
        per_day = (written_bytes(daemon.pid) - before) / (time.monotonic() - began) * 86_400
    sheet.row(f"over {seconds:.0f} s", per_day / 1e6)
    sheet.end()
