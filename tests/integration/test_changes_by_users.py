"""Permission to change something without a login: the kernel names the user of a local client."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.alert_machine import quick_config
from support.daemon_process import QUIET_MACHINE, Answer, RunningDaemon, get, running_daemon
from support.ingest_client import post
from support.login_settings import BEARER, login_config
from support.mutable_machine import MutableMachine
from support.other_user import (
    CAN_SWITCH,
    OTHER_UID,
    ask_as_other,
    build_request,
    exchange_as_other,
    process_of_other,
)
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import receiving

CHANGES = (
    ("POST", "/api/v1/silences?seconds=2592000"),
    ("DELETE", "/api/v1/silences/sil_0"),
    ("POST", "/api/v1/alerts/test"),
    ("POST", "/api/v1/release?seconds=3600"),
    ("POST", "/alerts"),
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon with a socket file and without a login."""
    folder = tmp_path_factory.mktemp("daemon")
    machine = MutableMachine.of(QUIET_MACHINE.name, folder / "machine")
    with running_daemon(folder, *machine.arguments, "--listen", f"unix:{folder}/socket") as running:
        yield running


def events_of(daemon: RunningDaemon, kind: str, **headers: str) -> list[str]:
    return [one["text"] for one in daemon.get("/api/v1/events?limit=1000", **headers).json if one["kind"] == kind]


def change(daemon: RunningDaemon, path: str) -> Answer:
    """Post once the requests of other tests, whose clients have left, are done: until then the answer is 503."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(get(daemon.port, path, method="POST"))
        return answers[-1].status != 503

    wait_until(is_answered)
    return answers[-1]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_other_user_changes_nothing(daemon: RunningDaemon, method: str, path: str) -> None:
    """403 with the three ways to be allowed. Reading is allowed."""
    status, answer = ask_as_other(daemon.port, path, method=method)

    assert status == 403
    for remedy in ("as root", "unix:/run/memwatchd/memwatchd.sock", "login under [web.auth]"):
        assert remedy in answer["detail"]
    assert daemon.get("/api/v1/silences").json == []
    assert ask_as_other(daemon.port, "/api/v1/silences", method="GET")[0] == 200


def test_client_that_closes_its_socket_is_not_root(daemon: RunningDaemon) -> None:
    """The kernel lists a closed socket as one of user 0 (Linux 6.18)."""
    request = build_request("/api/v1/silences?seconds=60&comment=closed", None, "POST", {})
    for _ in range(20):
        child = os.fork()
        if child == 0:
            try:
                if CAN_SWITCH:
                    os.setuid(OTHER_UID)
                else:
                    request = request.replace(b"Host:", b"X-Forwarded-For: 203.0.113.7\r\nHost:")
                connection = socket.socket()
                connection.connect(("127.0.0.1", daemon.port))
                connection.sendall(request)
                connection.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    assert daemon.get("/api/v1/silences").json == []


def test_daemons_own_user_may_change_and_is_named(daemon: RunningDaemon) -> None:
    """In made_by, in an event, and in the log."""
    made = change(daemon, "/api/v1/silences?seconds=60&comment=new%20disk").json[0]
    get(daemon.port, f"/api/v1/silences/{made['id']}", method="DELETE")

    assert f"uid {os.geteuid()}" in made["made_by"]
    ended, silenced = events_of(daemon, "silence")[:2]
    assert silenced == f"silenced for 1 min: all alerts, by {made['made_by']}: new disk"
    assert ended == f"silence ended: all alerts, by {made['made_by']}"
    daemon.wait_for_log(silenced)
    daemon.wait_for_log(ended)


def test_socket_file_peer_is_an_operator_and_is_named(daemon: RunningDaemon) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(MAX_WAIT_SECONDS)
        connection.connect(f"{daemon.log.parent}/socket")
        connection.sendall(build_request("/api/v1/silences?seconds=1", None, "POST", {}))
        answer = connection.recv(1 << 16)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert f"uid {os.geteuid()}" in events_of(daemon, "silence")[0]


def test_proxy_of_another_user_changes_nothing_and_a_marked_one_of_root_neither(daemon: RunningDaemon) -> None:
    """A proxy that only forwards connects as its own user."""
    plain = exchange_as_other(daemon.port, build_request("/api/v1/silences?seconds=60", None, "POST", {}))
    marked = get(daemon.port, "/api/v1/silences?seconds=60", {"Via": "1.1 proxy"}, "POST")

    # A user who cannot be switched to is the daemon's own.
    assert plain.startswith(b"HTTP/1.1 403 " if CAN_SWITCH else b"HTTP/1.1 200 ")
    assert marked.status == 403
    for silence in daemon.get("/api/v1/silences").json:
        get(daemon.port, f"/api/v1/silences/{silence['id']}", method="DELETE")


def test_process_marks_for_its_own_user_only(daemon: RunningDaemon) -> None:
    """A mark without a process needs an operator."""
    with process_of_other() as pid:
        MutableMachine(daemon.log.parent / "machine").show(pid)
        own = ask_as_other(daemon.port, "/api/v1/marks", {"text": "own", "pid": pid})
        foreign = ask_as_other(daemon.port, "/api/v1/marks", {"text": "foreign", "pid": 1})
        nameless = ask_as_other(daemon.port, "/api/v1/marks", {"text": "nameless"})
        report = {"pid": 1, "start_ticks": 1, "claims": [{"name": "PyTorch", "allocated_bytes": 1}]}
        reported = ask_as_other(daemon.port, "/api/v1/reports", report)
        by_operator = post(daemon, "/api/v1/marks", {"text": "by operator"})

    assert own[0] == (200 if CAN_SWITCH else 403)
    assert (foreign[0], nameless[0], reported[0], by_operator[0]) == (403, 403, 403, 200)
    texts = events_of(daemon, "mark")
    assert (f"own (process {pid})" in texts) == CAN_SWITCH
    assert "by operator" in texts
    assert not [text for text in texts if text.startswith(("foreign", "nameless"))]
    if CAN_SWITCH:
        assert "process 1 does not exist or has another user" in foreign[1]["detail"]
        assert "no pid was sent" in nameless[1]["detail"]


def test_holder_of_a_token_may_change_as_any_user_and_is_named(tmp_path: Path) -> None:
    """Also through a proxy."""
    with (
        receiving(200) as site,
        running_daemon(tmp_path, config=quick_config(site) + login_config(tmp_path)) as daemon,
    ):
        silenced = ask_as_other(daemon.port, "/api/v1/silences?seconds=60", headers=BEARER)
        tested = ask_as_other(daemon.port, "/api/v1/alerts/test", headers=BEARER)
        texts = events_of(daemon, "silence", **BEARER) + events_of(daemon, "test", **BEARER)

    assert (silenced[0], tested[0]) == (200, 200)
    assert texts == [
        "silenced for 1 min: all alerts, by bearer token",
        "test notification to site0, by bearer token",
    ]
