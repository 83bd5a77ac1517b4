"""A compared program: start, measurement and end."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).parent
MIB = 1 << 20
STRETCH_SECONDS = 10.0


class Subject(Struct, frozen=True):
    """Program that answers at `path` on `port`, as configured by its command line. A baseline watches nothing."""

    name: str
    port: int
    argv: Sequence[str]
    path: str = "/metrics"
    is_baseline: bool = False


class Idle(Struct, frozen=True):
    """Cost of programs without clients: % of a core, and wake-ups of all their threads a second."""

    percent: float
    wakeups: float


class Load(Struct, frozen=True):
    """Result of a load generator: answers a second, the 99th percentile in milliseconds, and the fraction of
    requests refused (node_exporter serves 40 at a time)."""

    per_second: float
    p99_ms: float
    refused: float = 0.0


@contextmanager
def running(subject: Subject) -> Iterator[tuple[int, float]]:
    """Start the program; yield its pid and the seconds until its first answer."""
    started = time.perf_counter()
    child = subprocess.Popen(subject.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(subject.port, subject.path):
            if child.poll() is not None or time.perf_counter() - started > 20:
                raise SystemExit(f"{subject.name} did not start: {' '.join(subject.argv)}")
            time.sleep(0.005)
        yield child.pid, time.perf_counter() - started
    finally:
        child.terminate()
        child.wait(10)


def answers(port: int, path: str = "/metrics") -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def pss_mib(pid: int) -> float:
    """Return the proportional set size, in which shared pages count in part."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def written_bytes(pid: int) -> int:
    """Return the bytes written to storage so far."""
    found = re.search(r"^write_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def cpu_seconds(pid: int) -> float:
    """Return CPU time so far in nanosecond resolution, that of ended threads included.

    The clock of another process as clock_getcpuclockid(3) makes it: ~pid and CPUCLOCK_SCHED.
    """
    return time.clock_gettime(~pid << 3 | 2)


def idle(groups: Sequence[Sequence[int]], seconds: float) -> list[Idle]:
    """Return the least of several measurements of ten seconds, for each group of processes.

    If the host stops a virtual machine, the pause is charged to whatever was running: seconds, now and then,
    against the three milliseconds measured here. A pause only adds, so the least value is closest to the daemon's
    cost. Work that it does every ten seconds is in each measurement.
    """
    found: list[list[Idle]] = []
    for _ in range(max(1, round(seconds / STRETCH_SECONDS))):
        before, began = [spent(pids) for pids in groups], time.monotonic()
        time.sleep(min(seconds, STRETCH_SECONDS))
        passed = time.monotonic() - began
        found.append(
            [
                Idle((now - then) / passed * 100, (woken_now - woken) / passed)
                for (then, woken), (now, woken_now) in zip(before, map(spent, groups), strict=True)
            ]
        )
    return [
        Idle(min(one.percent for one in of_group), min(one.wakeups for one in of_group))
        for of_group in zip(*found, strict=True)
    ]


def spent(pids: Sequence[int]) -> tuple[float, int]:
    """Return CPU time and wake-ups so far, over all processes."""
    return sum(map(cpu_seconds, pids)), sum(map(wakeups, pids))


def wakeups(pid: int) -> int:
    """Return how often threads of a process were scheduled after waiting."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        match = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
        found += int(match[1]) if match else 0
    return found


def load(port: int, clients: int, seconds: int, path: str = "/metrics") -> Load:
    """Run wrk with one thread."""
    argv = ["wrk", "--latency", "-t1", f"-c{clients}", f"-d{seconds}s", f"http://127.0.0.1:{port}{path}"]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    slow = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    count = re.search(r"(\d+) requests in", output)
    if rate is None or slow is None or count is None:
        raise SystemExit(f"unexpected output of wrk:\n{output}")
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}[slow[2]]
    refusals = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    rejected = int(refusals[1]) / max(1, int(count[1])) if refusals else 0.0
    return Load(float(rate[1]) * (1 - rejected), float(slow[1]) * scale, rejected)
