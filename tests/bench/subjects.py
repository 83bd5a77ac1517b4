"""The programs that are compared, and how to start, measure and end one of them."""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MIB = 1 << 20


@dataclass(frozen=True)
class Subject:
    """A program that serves /metrics on the port its command line is given."""

    name: str
    argv: Sequence[str]


@dataclass(frozen=True)
class Load:
    """What a load generator saw: requests a second, and the slowest of a hundred in milliseconds."""

    per_second: float
    p99_ms: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def subjects(port: int) -> list[Subject]:
    exporter = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    memory_only = [*exporter, "--collector.disable-defaults", "--collector.meminfo", "--collector.vmstat"]
    memwatchd = Path(sys.executable).with_name("memwatchd")
    return [
        Subject("memwatchd", [str(memwatchd), "--listen", f"127.0.0.1:{port}", "--log-level", "error"]),
        Subject("node_exporter, memory", [*memory_only, "--collector.pressure"]),
        Subject("node_exporter, default", exporter),
        Subject("prometheus_client + psutil", [sys.executable, str(HERE / "psutil_exporter.py"), str(port)]),
    ]


@contextmanager
def running(subject: Subject, port: int) -> Iterator[tuple[int, float]]:
    """Start it, wait for its first answer: its process id and the seconds that took."""
    started = time.perf_counter()
    child = subprocess.Popen(subject.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(port):
            if child.poll() is not None or time.perf_counter() - started > 20:
                raise SystemExit(f"{subject.name} did not start: {' '.join(subject.argv)}")
            time.sleep(0.005)
        yield child.pid, time.perf_counter() - started
    finally:
        child.terminate()
        child.wait(10)


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def cpu_seconds(pid: int) -> float:
    """Processor time so far, to the nanosecond, where the kernel keeps it (schedstat), else in clock ticks."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def wakeups(pid: int) -> int:
    """How often any of its threads was put on a processor after waiting."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        match = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
        found += int(match[1]) if match else 0
    return found


def load(port: int, clients: int, seconds: int) -> Load:
    """wrk with one thread against /metrics."""
    argv = ["wrk", "--latency", "-t1", f"-c{clients}", f"-d{seconds}s", f"http://127.0.0.1:{port}/metrics"]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    slow = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    if rate is None or slow is None or "Non-2xx" in output:
        raise SystemExit(f"wrk said something unexpected:\n{output}")
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}[slow[2]]
    return Load(float(rate[1]), float(slow[1]) * scale)
