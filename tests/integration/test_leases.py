"""Leases over HTTP: atomic grants, permission, errors, and where they are shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from simulators import sample_nvml_integrated
from simulators.nvml_machine import Simulator
from support.daemon_process import RunningDaemon, get, running_daemon
from support.ingest_client import own_ticks, post
from support.login_settings import BEARER, login_config
from support.mutable_machine import MutableMachine
from support.other_user import CAN_SWITCH, ask_as_other, process_of_other
from support.waiting import MAX_WAIT_SECONDS

GIB = 1 << 30
LEASES = "/api/v1/leases"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon on a machine with constant figures, on which this process runs."""
    folder = tmp_path_factory.mktemp("daemon")
    with on_machine(folder) as running:
        running.wait_until_ok("nvml")
        yield running


@contextmanager
def on_machine(folder: Path, *arguments: str, config: str = "") -> Iterator[RunningDaemon]:
    machine = MutableMachine.of("gb10", folder / "machine")
    show(machine, os.getpid())
    simulator = Simulator.of(folder, sample_nvml_integrated.GB10)
    with running_daemon(
        folder, *machine.arguments, *arguments, config=config, environ=simulator.environ
    ) as running:
        yield running


def show(machine: MutableMachine, pid: int) -> None:
    """Let a process of this machine run on the simulated one."""
    (machine.folder / "proc" / str(pid)).symlink_to(f"/proc/{pid}")


@contextmanager
def program(daemon: RunningDaemon) -> Iterator[int]:
    """Run a program on the machine of the daemon."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    show(MutableMachine(daemon.log.parent / "machine"), child.pid)
    try:
        yield child.pid
    finally:
        child.communicate()


def wanted(gib: float, **more: Any) -> dict[str, Any]:
    return {"bytes": int(gib * GIB), "target": "ram", "seconds": 60, "pid": os.getpid(), **more}


def leases(daemon: RunningDaemon) -> Any:
    return daemon.get(LEASES).json


@pytest.fixture(autouse=True)
def no_leases(daemon: RunningDaemon) -> Iterator[None]:
    yield
    for one in leases(daemon):
        get(daemon.port, f"{LEASES}/{one['id']}", method="DELETE")


def test_lease_is_listed_until_it_is_ended(daemon: RunningDaemon) -> None:
    """In the list, the snapshot, the metrics and the events. The pool's own figures stay."""
    before = daemon.snapshot()["pools"][0]
    status, granted = post(daemon, LEASES, wanted(20, start_ticks=own_ticks(), name="train.py"))
    listed, snapshot, metrics = leases(daemon), daemon.snapshot(), daemon.get("/metrics").text
    ended = get(daemon.port, f"{LEASES}/{granted['id']}", method="DELETE")
    again = get(daemon.port, f"{LEASES}/{granted['id']}", method="DELETE")

    assert status == 200
    assert listed == snapshot["leases"] == [granted]
    assert granted["held"] == {"ram": 20 * GIB}
    assert (granted["name"], granted["held_bytes"], granted["arrived_bytes"]) == ("train.py", 20 * GIB, 0)
    assert granted["until_unix"] - granted["created_unix"] == pytest.approx(60)
    assert snapshot["pools"][0] == before
    assert re.search(r'memwatch_pool_leased_bytes{.*pool="ram"} 2\.147483648e\+10\n', metrics)
    assert (ended.status, ended.json, again.status) == (200, [], 404)
    assert "lists those in force" in again.json["detail"]
    assert daemon.snapshot()["leases"] == []
    texts = [one["text"] for one in daemon.get("/api/v1/events?limit=2").json if one["kind"] == "lease"]
    assert texts[0].startswith("lease ended: 20.0 GiB of ram for train.py (PID ")
    assert texts[1].startswith("leased for 1 min: 20.0 GiB of ram for train.py (PID ")
    assert "leased" not in daemon.read_log()


def test_name_cannot_change_the_page_or_a_line(daemon: RunningDaemon) -> None:
    _, granted = post(daemon, LEASES, wanted(1, name="<script>\nx"))

    assert granted["name"] == "<script>\\u000ax"
    assert "&lt;script&gt;" in daemon.get("/").text
    assert "\n" not in daemon.get("/api/v1/events?limit=1").json[0]["text"]


def ask_together(daemon: RunningDaemon, *pids: int) -> list[tuple[int, Any]]:
    """Ask for a lease of 25 GiB for each process at the same moment."""
    gate = threading.Barrier(len(pids))
    answers: list[tuple[int, Any]] = []

    def ask(pid: int) -> None:
        gate.wait()
        answers.append(post(daemon, LEASES, wanted(25, pid=pid)))

    clients = [threading.Thread(target=ask, args=(pid,)) for pid in pids]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return answers


def test_one_of_two_simultaneous_requests_is_granted(daemon: RunningDaemon) -> None:
    """44.3 GiB are available, and each asks for 25. Twenty rounds of two clients that start together."""
    with program(daemon) as other:
        for _ in range(20):
            answers = ask_together(daemon, os.getpid(), other)

            assert sorted(status for status, _ in answers) == [200, 409]
            (granted,) = leases(daemon)
            get(daemon.port, f"{LEASES}/{granted['id']}", method="DELETE")
    refusal = next(answer["detail"] for status, answer in answers if status == 409)
    assert "25.0 GiB of ram do not fit: 19.3 GiB are available beside leases: 25.0 GiB of ram for " in refusal


def test_fit_counts_the_leases_of_others(daemon: RunningDaemon) -> None:
    """On the CPU, and on the GPU that allocates from the same pool. The holder names its lease."""
    _, granted = post(daemon, LEASES, wanted(20, name="train.py"))
    others = daemon.get("/api/v1/fit?bytes=30GiB").json
    own = daemon.get(f"/api/v1/fit?bytes=30GiB&lease={granted['id']}").json
    page = daemon.get("/fit?bytes=30GiB").text

    assert (others["best"], own["best"]) == (None, "gpu0")
    assert [one["leased_bytes"] for one in others["verdicts"]] == [20 * GIB] * 2
    assert [one["leased_bytes"] for one in own["verdicts"]] == [0] * 2
    assert others["verdicts"][0]["reason"].endswith(f"; 20.0 GiB is leased to train.py ({os.getpid()})")
    assert "20.0 GiB</span> is leased to train.py" in page


def test_lease_ends_with_its_time_and_its_process(daemon: RunningDaemon) -> None:
    """Within a tick, in the snapshot as well."""
    with program(daemon) as other:
        granted = [
            post(daemon, LEASES, one)[1] for one in (wanted(1, seconds=1.0), wanted(1, pid=other, seconds=3600))
        ]
        daemon.wait_for(LEASES, lambda found: [lease["pid"] for lease in found] == [other])
    daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["leases"] == [])

    assert [lease["pid"] for lease in granted] == [os.getpid(), other]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (wanted(0), "bytes is 0: input should be greater than or equal to 16777216"),
        (wanted(1, bytes=(16 << 20) - 1), "bytes is 16777215: input should be greater than or equal to 16777216"),
        (wanted(1, seconds=3601), "seconds is 3601: input should be less than or equal to 3600"),
        (wanted(1, target="gpu7"), "target is 'gpu7'; use one of ram, gpu0."),
        (wanted(1, pid=4_000_000), "no process 4000000 runs here; send the pid of a running process as the host"),
        (wanted(1, pid=1, start_ticks=1), "no process 1 that started at tick 1 runs here"),
        (wanted(500), "500.0 GiB exceed the total of ram, 121.7 GiB; lease less."),
        ({}, 'bytes is missing: send JSON, for example {"bytes":21474836480,"target":"gpu0","seconds":120'),
    ],
)
def test_invalid_request_is_refused_with_a_remedy(body: Any, why: str, daemon: RunningDaemon) -> None:
    status, answer = post(daemon, LEASES, body)

    assert status == 422
    assert answer["detail"].startswith(why)
    assert leases(daemon) == []


def test_user_leases_for_own_processes_only(daemon: RunningDaemon) -> None:
    """And ends only leases of own processes."""
    machine = MutableMachine(daemon.log.parent / "machine")
    with process_of_other() as pid:
        show(machine, pid)
        _, of_operator = post(daemon, LEASES, wanted(1))
        own = ask_as_other(daemon.port, LEASES, wanted(1, pid=pid))
        foreign = ask_as_other(daemon.port, LEASES, wanted(1))
        taken = ask_as_other(daemon.port, f"{LEASES}/{of_operator['id']}", method="DELETE")
        missing = ask_as_other(daemon.port, f"{LEASES}/lease_0", method="DELETE")
        ended = ask_as_other(daemon.port, f"{LEASES}/{own[1].get('id')}", method="DELETE")

    assert own[0] == ended[0] == (200 if CAN_SWITCH else 403)
    assert (foreign[0], taken[0], missing[0]) == (403, 403, 404 if CAN_SWITCH else 403)
    if CAN_SWITCH:
        assert f"may lease only for processes of this user: process {os.getpid()} does not" in foreign[1]["detail"]
        assert "may end only leases of own processes" in taken[1]["detail"]
    assert [one["id"] for one in leases(daemon)] == [of_operator["id"]]


def test_lease_needs_the_login_if_there_is_one(tmp_path: Path) -> None:
    with on_machine(tmp_path, config=login_config(tmp_path)) as daemon:
        without = ask_as_other(daemon.port, LEASES, wanted(1))
        granted = ask_as_other(daemon.port, LEASES, wanted(1), headers=BEARER)

    assert (without[0], granted[0]) == (401, 200)
    assert granted[1]["made_by"] == "bearer token"


def test_restart_drops_leases(tmp_path: Path) -> None:
    """Also with a state folder."""
    with on_machine(tmp_path, "--state-dir", str(tmp_path / "state")) as daemon:
        assert post(daemon, LEASES, wanted(1))[0] == 200
    machine = MutableMachine(tmp_path / "machine")
    with running_daemon(tmp_path, *machine.arguments, "--state-dir", str(tmp_path / "state")) as daemon:
        assert leases(daemon) == []


def test_events_of_leases_displace_no_others(daemon: RunningDaemon) -> None:
    """A program that leases in a loop must not remove events that administrators need."""
    earlier = daemon.get("/api/v1/events?limit=1000").json
    before = {one["seq"] for one in earlier if one["kind"] != "lease"}
    # One connection: memwatchd looks up whose each new one is, a third of the cost of these requests.
    with closing(HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)) as connection:
        for _ in range(255):  # each has two events
            connection.request("POST", LEASES, json.dumps(wanted(1)), {"Content-Type": "application/json"})
            granted = json.loads(connection.getresponse().read())
            connection.request("DELETE", f"{LEASES}/{granted['id']}")
            connection.getresponse().read()
    events = daemon.get("/api/v1/events?limit=1000").json

    assert before <= {one["seq"] for one in events}
    known = {one["seq"] for one in earlier}
    assert sum(one["kind"] == "lease" and one["seq"] not in known for one in events) <= 500
