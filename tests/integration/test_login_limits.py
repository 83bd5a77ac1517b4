"""Failed logins of a running daemon: slowed by address and user, logged, counted."""

from __future__ import annotations

import re
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from memwatch_web.asgi.auth import MAX_FAILURES
from support.daemon_process import (
    MEMWATCHD,
    Answer,
    RunningDaemon,
    get,
    run_program,
    running_daemon,
)
from support.login_settings import BEARER, PASSWORD, basic, login_config
from support.other_user import CAN_SWITCH, ask_as_other
from support.waiting import MAX_WAIT_SECONDS

WRONG = basic("ada", "wrong")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path, config=login_config(tmp_path)) as running:
        yield running


def tries(daemon: RunningDaemon, count: int) -> list[Answer]:
    return [daemon.get("/metrics", **WRONG) for _ in range(count)]


def test_failed_logins_are_refused_unchecked_after_ten(daemon: RunningDaemon) -> None:
    """A right password as well, or the response would tell which guess is right. A right token is accepted."""
    assert daemon.get("/metrics", **basic("ada", PASSWORD)).status == 200

    statuses = [answer.status for answer in tries(daemon, 3 * MAX_FAILURES)]
    locked = daemon.get("/metrics", **basic("ada", PASSWORD))

    assert statuses[:MAX_FAILURES] == [401] * MAX_FAILURES
    assert statuses.count(429) >= MAX_FAILURES
    assert locked.status == 429
    assert 1 <= int(locked.headers["retry-after"]) <= 6
    assert daemon.get("/metrics", **BEARER).status == 200
    assert daemon.get("/healthz").status == 200
    time.sleep(int(locked.headers["retry-after"]) + 0.1)
    assert daemon.get("/metrics", **basic("ada", PASSWORD)).status == 200


def test_other_user_of_this_machine_does_not_lock_an_operator_out(daemon: RunningDaemon) -> None:
    """Clients of one address are told apart by their user. Without root, the test itself is the other user.

    Every 6 s one more failure is allowed, so that a busy machine refuses a later one.
    """
    statuses: list[int] = []
    while 429 not in statuses and len(statuses) < 3 * MAX_FAILURES:
        statuses.append(ask_as_other(daemon.port, "/api/v1/pools", None, "GET", WRONG)[0])
    own = daemon.get("/api/v1/pools", **basic("ada", PASSWORD)).status

    assert statuses[:MAX_FAILURES] == [401] * MAX_FAILURES
    assert statuses[-1] == 429
    assert own == (200 if CAN_SWITCH else 429)


def test_failed_logins_are_logged_once_and_counted(daemon: RunningDaemon) -> None:
    """Requests without credentials are no failures: browsers start with one. No secret is logged."""
    assert daemon.get("/metrics").status == 401
    daemon.get("/metrics", Authorization="Bearer a-wrong-token-in-a-header")
    tries(daemon, 5)

    found = daemon.get("/metrics", **BEARER).text
    assert re.search(r"^memwatch_failed_logins_total (\d\.0)$", found, re.MULTILINE) is not None
    daemon.wait_for_log("failed login from loopback")
    lines = [line for line in daemon.read_log().splitlines() if "failed login" in line]
    assert len(lines) == 1
    assert "wrong token" in lines[0]
    assert "a-wrong-token" not in daemon.read_log()


def test_password_attempts_do_not_block_other_clients(daemon: RunningDaemon) -> None:
    """Checks run in a thread. Most of the later ones are refused without one."""
    tries(daemon, MAX_FAILURES)

    refused = tries(daemon, 50)

    assert [answer.status for answer in refused].count(429) >= 45
    assert get(daemon.port, "/readyz").status == 200


def test_world_readable_hashes_are_a_warning(tmp_path: Path) -> None:
    """At the start and by --check-config; weak passwords can be guessed from their hashes."""
    warning = f"every user of this machine can read the secret in {tmp_path}/memwatchd.toml"
    settings = tmp_path / "memwatchd.toml"
    settings.write_text("")
    settings.chmod(0o644)
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        log = daemon.read_log()
    checked = check_config(settings)
    settings.chmod(0o640)
    private = check_config(settings)

    assert stat.S_IMODE(settings.stat().st_mode) == 0o640
    assert warning in log
    assert warning in checked.stderr
    assert "chmod o-r" in checked.stderr
    assert private.stderr == ""


def check_config(settings: Path) -> subprocess.CompletedProcess[str]:
    return run_program(MEMWATCHD, "--config", settings, "--check-config")


def test_local_user_gains_no_tries_from_other_loopback_addresses(daemon: RunningDaemon) -> None:
    """All of 127.0.0.0/8 is this machine: one user has one count."""
    statuses = [status_from(f"127.0.0.{number}", daemon) for number in range(2, MAX_FAILURES + 4)]

    assert statuses[:MAX_FAILURES] == [401] * MAX_FAILURES
    assert statuses[-1] == 429


def status_from(source: str, daemon: RunningDaemon) -> int:
    connection = HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS, source_address=(source, 0))
    with closing(connection):
        connection.request("GET", "/metrics", headers=WRONG)
        return connection.getresponse().status
