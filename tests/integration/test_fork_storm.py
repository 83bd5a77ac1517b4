"""Thousands of short-lived processes cause no missed tick and no descriptor leak."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, descriptors, kept_files, running_daemon
from support.paths import TESTS
from support.waiting import Stopwatch

STORM = TESTS / "support" / "fork_storm.py"
OFTEN = '[processes]\ninterval = "1s"\n'


@contextmanager
def storm(count: int, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-E", str(STORM), str(count), str(seconds)]) as process:
        yield process
    assert process.returncode == 0


@contextmanager
def limit_of(daemon: RunningDaemon, descriptors: int) -> Iterator[None]:
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    yield


def sample(daemon: RunningDaemon, children: subprocess.Popen[bytes]) -> list[Any]:
    """Return every snapshot of the storm with the number of process files that are kept open."""
    found: list[Any] = []
    while children.poll() is None:
        snapshot = daemon.snapshot()
        if not found or found[-1][0]["seq"] != snapshot["seq"]:
            found.append((snapshot, kept_files(daemon.pid)))
    return found


@pytest.mark.long
@pytest.mark.host
@pytest.mark.parametrize("limit", [600, 4096])
def test_fork_storm_misses_no_tick_and_hits_no_limit(tmp_path: Path, limit: int) -> None:
    """3,000 processes in 6 s, with and without enough descriptors to keep one file per process."""
    with running_daemon(
        tmp_path, "--interval", "200ms", config=OFTEN, environ=WITHOUT_COVERAGE, watches_this_machine=True
    ) as daemon:
        base = descriptors(daemon.pid)
        with limit_of(daemon, limit), storm(3000, 6) as children:
            watch = Stopwatch(daemon.pid)
            found = sample(daemon, children)
            seconds = watch.seconds
        daemon.wait_for("/api/v1/snapshot", lambda now: now["seq"] > found[-1][0]["seq"] + 10)
        after = daemon.snapshot()
        events = daemon.get("/api/v1/events").json

        lags = sorted(snapshot["self"]["tick_lag_seconds"] for snapshot, _ in found)
        assert found[-1][0]["seq"] - found[0][0]["seq"] >= 3 * min(seconds, 6)
        assert lags[len(lags) // 2] < 0.05
        assert lags[-1] < 0.5
        assert max(count for _, count in found) <= limit // 2
        assert not [event for event in events if event["kind"] == "collector"]
        assert next(one for one in after["collectors"] if one["name"] == "processes")["errors"] == {}
        assert descriptors(daemon.pid) <= base + 2
        assert not {"WARNING", "ERROR"} & set(daemon.read_log().split())
