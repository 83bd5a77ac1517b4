"""Common checks after every fault: alive within 5 s, answering, sampling, few log lines, bounded memory."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import run_delay_seconds, steal_seconds

MIB = 1 << 20
BACK_SECONDS = 5.0
ANSWER_SECONDS = 1.0
LINES_A_MINUTE = 10
MAX_PRIVATE = 128 * MIB
# With a login /metrics returns 401, which counts as an answer.
ANSWERS = frozenset({200, 401})


@contextmanager
def survived(daemon: RunningDaemon) -> Iterator[None]:
    """Run the checks after the block, which injects a fault."""
    began, size = time.monotonic(), daemon.log.stat().st_size
    yield
    assert_well(daemon)
    assert_quiet(daemon, size, time.monotonic() - began)


@contextmanager
def back_in_time(tmp_path: Path, *arguments: str, **how: Any) -> Iterator[RunningDaemon]:
    """Restart as systemd would, without RestartSec."""
    began, kept = time.monotonic(), steal_seconds()
    with running_daemon(tmp_path, *arguments, **how) as daemon:
        took = time.monotonic() - began - (run_delay_seconds(daemon.pid) + steal_seconds() - kept)
        assert took <= BACK_SECONDS, f"ready after {took:.1f} s"
        assert_well(daemon)
        yield daemon


def assert_well(daemon: RunningDaemon) -> None:
    """Check that the process runs, /metrics answers within 1 s, sampling continues and memory is bounded."""
    assert daemon.process.poll() is None, f"exited with {daemon.process.returncode}: {daemon.read_log()}"
    until = time.monotonic() + BACK_SECONDS
    while (took := seconds_to_answer(daemon)) > ANSWER_SECONDS:
        assert time.monotonic() < until, f"/metrics took {took:.1f} s"
    assert_sampling(daemon)
    held = private_bytes(daemon.pid)
    assert held <= MAX_PRIVATE, f"{held / MIB:.0f} MiB are private"


def assert_sampling(daemon: RunningDaemon) -> None:
    """Check that a newer tick comes within 5 s."""
    if daemon.get("/api/v1/snapshot").status == 200:
        before = daemon.snapshot()["seq"]
        daemon.wait_for("/api/v1/snapshot", lambda now: now["seq"] > before, BACK_SECONDS)


def assert_quiet(daemon: RunningDaemon, since: int, seconds: float) -> None:
    """Check for no traceback and at most ten warnings a minute."""
    complaints = complaints_of(daemon.log, since)
    assert "Traceback" not in "\n".join(complaints)
    assert len(complaints) <= LINES_A_MINUTE * max(1.0, seconds / 60), complaints


def complaints_of(log: Path, since: int = 0) -> list[str]:
    """Return log lines after an offset with a level above info, and lines without a level (tracebacks)."""
    return [line for line in log.read_bytes()[since:].decode().splitlines() if " INFO " not in line]


def seconds_to_answer(daemon: RunningDaemon) -> float:
    began = time.monotonic()
    assert daemon.get("/metrics").status in ANSWERS
    return time.monotonic() - began


def private_bytes(pid: int) -> int:
    """Return the memory that only this process has.

    A daemon is forked from a server that keeps the demos that other tests have played, and their pages are resident
    in it as well.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB$", rollup, re.MULTILINE)
    return sum(int(size) << 10 for size in sizes)
