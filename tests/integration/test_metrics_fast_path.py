"""A scrape gets the same answer whichever way it takes, and the short one lets nobody in."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from support.daemon_process import Answer, RunningDaemon, get, running_daemon
from support.waiting import wait_until

LONG_WAY = {"Connection": "close"}
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon whose ticks are far enough apart that two requests see the same one."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--interval", "30s") as running:
        yield running


def told(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """What the two ways share: all but the moment and the end of the connection."""
    fields = {name: value for name, value in answer.headers.items() if name not in ("date", "connection")}
    return answer.status, fields, answer.body


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("accept", ["*/*", "text/plain;version=0.0.4", OPENMETRICS, "text/plain;version=x", ""])
def test_both_ways_have_the_same_answer(daemon: RunningDaemon, accept: str, encoding: str) -> None:
    """To the byte, with the same fields in front."""
    asked = {"Accept": accept, "Accept-Encoding": encoding}

    short = [daemon.get("/metrics", **asked) for _ in range(2)]
    long = daemon.get("/metrics", **asked, **LONG_WAY)

    assert "connection" not in short[0].headers
    assert long.headers["connection"] == "close"
    assert told(short[0]) == told(short[1]) == told(long)
    assert short[0].status == 200
    assert (short[0].headers.get("content-encoding") == "gzip") == (encoding == "gzip")


def test_a_new_tick_is_a_new_answer(tmp_path: Path) -> None:
    """What was made for one tick is not sent for the next, and the date moves on."""
    with running_daemon(tmp_path, "--interval", "200ms") as daemon:
        first = daemon.get("/metrics")
        wait_until(lambda: daemon.get("/metrics").body != first.body)
        time.sleep(1.1)
        later = daemon.get("/metrics")

    passed = parsedate_to_datetime(later.headers["date"]) - parsedate_to_datetime(first.headers["date"])
    assert passed.total_seconds() >= 1.0


@pytest.mark.parametrize("way", [{}, LONG_WAY], ids=["short", "long"])
@pytest.mark.parametrize(
    "hosts", [["evil.example"], ["localhost", "localhost"], []], ids=["foreign", "two", "none"]
)
def test_a_host_that_is_not_this_machine_gets_nothing(
    daemon: RunningDaemon, hosts: list[str], way: dict[str, str]
) -> None:
    """A foreign page cannot read /metrics by a name of its own."""
    fields = [*(("Host", host) for host in hosts), *way.items()]
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=60) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\n{lines}\r\n".encode())
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"memwatch_pool" not in answer


def test_who_has_to_show_a_login_takes_the_long_way(tmp_path: Path) -> None:
    """Nothing at once without it, and everything at once over the socket file, whose mode is the login."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    config = f'[web.auth]\nbearer_token = "file:{token}"\n'
    with running_daemon(tmp_path, "--listen", f"unix:{tmp_path}/socket", config=config) as daemon:
        stranger, known = daemon.get("/metrics"), daemon.get("/metrics", Authorization=f"Bearer {TOKEN}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            connection.connect(f"{tmp_path}/socket")
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            peer = connection.recv(65536)

    assert stranger.status == 401
    assert b"memwatch_pool" not in stranger.body
    assert known.status == 200
    assert peer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_simulated_machine_says_so_on_both_ways(tmp_path: Path) -> None:
    """The mark that no such machine is here is in every answer."""
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon:
        answers = [daemon.get("/metrics"), get(daemon.port, "/metrics", LONG_WAY)]

    assert [answer.headers["memwatch-simulated"] for answer in answers] == ["true", "true"]
