"""Test SIGKILL and OOM kills of the daemon: it restarts in time and loses neither history nor messages."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest
from fault_oracle import back_in_time

from support.alert_machine import AlertMachine, quick_config
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.many_clients import LARGEST, slow_readers
from support.memory_cgroup import memory_cgroup
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import receiving

MIB = 1 << 20
KILLS = 5


@pytest.mark.long
def test_random_kills_lose_no_alert(tmp_path: Path) -> None:
    """Each start is in time, history continues, and no id has two bodies."""
    machine, chance = AlertMachine.of(tmp_path), random.Random(1)
    arguments = [*machine.arguments, f"--state-dir={tmp_path / 'state'}"]
    with receiving(200, 500, 200) as site:
        config = quick_config(site, pending="100ms")
        for number in range(KILLS):
            with back_in_time(tmp_path, *arguments, config=config) as daemon:
                assert "memwatch_history_damaged_records 0.0" in daemon.get("/metrics").text
                assert number == 0 or daemon.get("/api/v1/last-words").status == 200
                (machine.empty, machine.fill)[number % 2]()
                time.sleep(chance.uniform(0.1, 0.8))
                assert_killed_and_reaped(daemon, number)
        machine.empty()
        with back_in_time(tmp_path, *arguments, config=config) as daemon:
            daemon.wait_for("/api/v1/alerts", lambda alerts: alerts == [])
            wait_until(lambda: daemon.get("/api/v1/receivers").json[0]["pending"] == 0)
    bodies = defaultdict(set)
    for delivery in site.deliveries:
        bodies[delivery.headers["webhook-id"]].add(delivery.body)
    assert all(len(different) == 1 for different in bodies.values())
    assert json.loads(site.deliveries[-1].body)["event"] == "pressure.resolved"


def assert_killed_and_reaped(daemon: RunningDaemon, number: int) -> None:
    daemon.process.kill()
    assert daemon.process.wait(MAX_WAIT_SECONDS) == -9, f"kill {number}"


def test_oom_kill_at_its_own_limit_is_reported_after_the_restart(tmp_path: Path) -> None:
    """memwatchd exceeds its own memory limit: it restarts in time, and the kill is an event."""
    machine = AlertMachine.of(tmp_path)
    machine.fill()
    arguments = [*machine.arguments, f"--state-dir={tmp_path / 'state'}"]
    with memory_cgroup(512 * MIB) as cgroup:
        inside = cgroup.inside if cgroup else []
        with running_daemon(tmp_path, *arguments, through=inside, environ=WITHOUT_COVERAGE) as daemon:
            daemon.wait_for("/api/v1/snapshot", lambda now: now["seq"] >= 20)
            if cgroup is None:
                daemon.process.kill()
            else:
                cgroup.leave_room(MIB)
                make_it_grow(daemon)
            assert daemon.process.wait(MAX_WAIT_SECONDS) == -9
        # The simulated machine counts the kill as a kernel would.
        machine.count_oom_kill()
        with back_in_time(tmp_path, *arguments, environ=WITHOUT_COVERAGE) as daemon:
            daemon.wait_for("/api/v1/events", lambda events: "oom_kill" in {event["kind"] for event in events})
            events = {event["kind"]: event["text"] for event in daemon.get("/api/v1/events").json}

    assert events["unclean"].startswith("unclean shutdown: memwatchd crashed or was killed; last sample ")
    assert events["oom_kill"] == (
        "OOM killer: killed 1 process while memwatchd was not running (possibly memwatchd itself)"
    )


def make_it_grow(daemon: RunningDaemon) -> None:
    """Clients request much and read nothing, until the kernel kills the daemon."""
    with suppress(OSError), slow_readers(daemon, 200, LARGEST * 4):
        wait_until(lambda: daemon.process.poll() is not None)
