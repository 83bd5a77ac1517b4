"""One measure for every fault: alive or back within 5 s, answering, sampling, quiet and small."""

from __future__ import annotations

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
MAX_RSS = 128 * MIB
# With a login /metrics is refused, which is an answer.
ANSWERS = frozenset({200, 401})


@contextmanager
def survived(daemon: RunningDaemon) -> Iterator[None]:
    """A fault is injected inside; afterwards all is as it should be."""
    began, size = time.monotonic(), daemon.log.stat().st_size
    yield
    assert_well(daemon)
    assert_quiet(daemon, size, time.monotonic() - began)


@contextmanager
def back_in_time(tmp_path: Path, *arguments: str, **how: Any) -> Iterator[RunningDaemon]:
    """Started again as systemd would, but at once: its RestartSec is not ours to measure."""
    began, kept = time.monotonic(), steal_seconds()
    with running_daemon(tmp_path, *arguments, **how) as daemon:
        took = time.monotonic() - began - (run_delay_seconds(daemon.pid) + steal_seconds() - kept)
        assert took <= BACK_SECONDS, f"it was back after {took:.1f} s"
        assert_well(daemon)
        yield daemon


def assert_well(daemon: RunningDaemon) -> None:
    """The process is there, /metrics comes within a second, samples go on, memory is bounded."""
    assert daemon.process.poll() is None, f"it ended with {daemon.process.returncode}: {daemon.log.read_text()}"
    until = time.monotonic() + BACK_SECONDS
    while (took := seconds_to_answer(daemon)) > ANSWER_SECONDS:
        assert time.monotonic() < until, f"/metrics took {took:.1f} s"
    assert_sampling(daemon)
    assert rss_bytes(daemon.pid) <= MAX_RSS


def assert_sampling(daemon: RunningDaemon) -> None:
    """A newer tick within 5 s."""
    if daemon.get("/api/v1/snapshot").status == 200:
        before = daemon.snapshot()["seq"]
        daemon.wait_for("/api/v1/snapshot", lambda now: now["seq"] > before, BACK_SECONDS)


def assert_quiet(daemon: RunningDaemon, since: int, seconds: float) -> None:
    """No traceback, and at most ten complaints a minute."""
    complaints = complaints_of(daemon.log, since)
    assert "Traceback" not in "\n".join(complaints)
    assert len(complaints) <= LINES_A_MINUTE * max(1.0, seconds / 60), complaints


def complaints_of(log: Path, since: int = 0) -> list[str]:
    """Lines of the log from an offset on that are no news; lines of a traceback have no level."""
    return [line for line in log.read_bytes()[since:].decode().splitlines() if " INFO " not in line]


def seconds_to_answer(daemon: RunningDaemon) -> float:
    began = time.monotonic()
    assert daemon.get("/metrics").status in ANSWERS
    return time.monotonic() - began


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmRSS")
