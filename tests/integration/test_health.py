"""Health endpoints while one thread of the daemon is stopped, and afterwards."""

from __future__ import annotations

import re
import time
from pathlib import Path

from support.daemon_process import running_daemon
from support.stopped_thread import loop_of, thread_stopped


def test_pause_of_half_a_second_is_healthy(tmp_path: Path) -> None:
    """At ten ticks a second, a paused machine is no reason to restart the daemon."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon, thread_stopped(daemon.pid, loop_of(daemon)):
        before = daemon.get("/healthz").json["age_seconds"]
        time.sleep(max(0.0, 0.5 - before))
        health = daemon.get("/healthz")

    assert health.json["age_seconds"] > 0.3
    # A pause of this machine may add to it and exceed the tolerated second.
    assert health.status == (200 if health.json["age_seconds"] <= 1 else 503)


def test_stopped_sampling_loop_is_reported_as_stalled(tmp_path: Path) -> None:
    """The rest of the daemon answers: 503 with the age of the last tick, and a banner on the page."""
    with running_daemon(tmp_path, "--interval", "200ms") as daemon:
        daemon.wait_for("/healthz", lambda health: health["status"] == "ok")
        with thread_stopped(daemon.pid, loop_of(daemon)):
            daemon.wait_for("/healthz", lambda health: health["status"] == "stalled")
            health = daemon.get("/healthz")
            ready = daemon.get("/readyz")
            page = daemon.get("/").text
        daemon.wait_for("/healthz", lambda health: health["status"] == "ok")
        later = daemon.get("/").text

    assert health.status == 503
    assert health.json["age_seconds"] > 1
    assert ready.status == 200
    assert re.search(r'role="alert">No new data for \d', page)
    assert "No new data for" not in later
