"""The fast path of /metrics returns the same response as the full web app and has the same access rules."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from support.daemon_process import Answer, RunningDaemon, get, running_daemon
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS, wait_until

FULL_PATH = {"Connection": "close"}
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with a 30 s interval: three requests see the same tick, unless an event of the kernel starts one."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--interval", "30s") as running:
        yield running


def comparable(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body without `date` and `connection`, which may differ."""
    fields = {name: value for name, value in answer.headers.items() if name not in ("date", "connection")}
    return answer.status, fields, answer.body


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("accept", ["*/*", "text/plain;version=0.0.4", OPENMETRICS, "text/plain;version=x", ""])
def test_fast_and_full_path_return_the_same_response(daemon: RunningDaemon, accept: str, encoding: str) -> None:
    headers = {"Accept": accept, "Accept-Encoding": encoding}

    for _ in range(5):
        fast = daemon.get("/metrics", **headers)
        full = daemon.get("/metrics", **headers, **FULL_PATH)
        if daemon.get("/metrics", **headers).body == fast.body:  # else a tick came between them
            break

    assert "connection" not in fast.headers
    assert full.headers["connection"] == "close"
    assert comparable(fast) == comparable(full)
    assert fast.status == 200
    assert (fast.headers.get("content-encoding") == "gzip") == (encoding == "gzip")


def test_new_tick_gets_a_new_response(tmp_path: Path) -> None:
    """A cached response is used for one tick only, and the Date header advances."""
    with running_daemon(tmp_path, "--interval", "200ms") as daemon:
        first = daemon.get("/metrics")
        wait_until(lambda: daemon.get("/metrics").body != first.body)
        time.sleep(1.1)
        later = daemon.get("/metrics")

    passed = parsedate_to_datetime(later.headers["date"]) - parsedate_to_datetime(first.headers["date"])
    assert passed.total_seconds() >= 1.0


@pytest.mark.parametrize("extra", [{}, FULL_PATH], ids=["fast", "full"])
@pytest.mark.parametrize(
    "hosts", [["evil.example"], ["localhost", "localhost"], []], ids=["foreign", "two", "none"]
)
def test_foreign_host_header_is_rejected_on_both_paths(
    daemon: RunningDaemon, hosts: list[str], extra: dict[str, str]
) -> None:
    """DNS rebinding does not open /metrics to a foreign page."""
    fields = [*(("Host", host) for host in hosts), *extra.items()]
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\n{lines}\r\n".encode())
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"memwatch_pool" not in answer


def test_configured_token_is_required_on_tcp_and_not_on_the_unix_socket(tmp_path: Path) -> None:
    """Without the token TCP gets 401. The Unix socket needs none: its file mode is the access control."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    config = f'[web.auth]\nbearer_token = "file:{token}"\n'
    with running_daemon(tmp_path, "--listen", f"unix:{tmp_path}/socket", config=config) as daemon:
        anonymous, authorized = daemon.get("/metrics"), daemon.get("/metrics", Authorization=f"Bearer {TOKEN}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(MAX_WAIT_SECONDS)
            connection.connect(f"{tmp_path}/socket")
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            peer = connection.recv(65536)

    assert anonymous.status == 401
    assert b"memwatch_pool" not in anonymous.body
    assert authorized.status == 200
    assert peer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_simulated_machine_is_marked_on_both_paths(shared_daemons: SharedDaemons) -> None:
    """Every response of a simulated machine has the memwatch-simulated header."""
    daemon = shared_daemons.demo("dgx-spark")
    answers = [daemon.get("/metrics"), get(daemon.port, "/metrics", FULL_PATH)]

    assert [answer.headers["memwatch-simulated"] for answer in answers] == ["true", "true"]
