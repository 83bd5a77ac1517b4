"""Test unknown hosts, many streams and many reloads."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_oracle import MIB, survived

from support.alert_machine import WEBHOOK
from support.certificates import self_signed
from support.daemon_process import WITHOUT_COVERAGE, descriptors, rss_bytes, running_daemon
from support.waiting import MAX_WAIT_SECONDS
from support.webhook_samples import SECRET

EVIL = {
    "evil": b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "missing": b"GET /metrics HTTP/1.1\r\n\r\n",
    "two": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "absolute": b"GET http://evil.example/metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
}
ORIGIN = (
    b"POST /api/v1/release HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nContent-Length: 0\r\n\r\n"
)


def send_request(connection: socket.socket, request: bytes) -> bytes:
    with connection:
        connection.settimeout(MAX_WAIT_SECONDS)
        connection.sendall(request)
        return connection.recv(65536).lower()


def test_every_listener_refuses_an_unknown_host(tmp_path: Path) -> None:
    """TCP, TLS and a socket file return 400 for every form of another name, 403 for other sites, no CORS."""
    certificate = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    by_address = ssl.create_default_context(cafile=str(certificate))
    by_address.check_hostname = False
    tls = f'[web.tls]\ncert_file = "{certificate}"\nkey_file = "{certificate}"\n'
    plain, secured = tmp_path / "plain", tmp_path / "secured"
    plain.mkdir()
    secured.mkdir()
    with (
        running_daemon(plain, "--listen", f"unix:{plain}/s") as open_one,
        running_daemon(secured, config=tls, tls=by_address) as closed_one,
    ):

        def unix_socket() -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(f"{plain}/s")
            return connection

        def tcp() -> socket.socket:
            return socket.create_connection(("127.0.0.1", open_one.port))

        def over_tls() -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", closed_one.port))
            return context.wrap_socket(connection, server_hostname="localhost")

        listeners: list[Callable[[], socket.socket]] = [tcp, unix_socket, over_tls]
        for connect in listeners:
            for name, request in EVIL.items():
                answer = send_request(connect(), request)
                assert answer.startswith(b"http/1.1 400 "), (name, connect.__name__)
                assert b"access-control-" not in answer
            assert send_request(connect(), ORIGIN).startswith(b"http/1.1 403 "), connect.__name__


@pytest.mark.long
@pytest.mark.measure
def test_hundred_reloads_leak_nothing(tmp_path: Path) -> None:
    """Settings change a hundred times, four times to invalid ones: descriptors, threads and memory stay.

    One receiver comes and goes with it, another is replaced each time.
    """
    first, second = (WEBHOOK.format(name=name, url="https://127.0.0.1:9", secret=SECRET) for name in ("one", "two"))
    good = (f"[pressure]\nmedium_percent = 50\n{first}timeout = '5s'\n{second}", first)
    with running_daemon(tmp_path, "--interval", "100ms", environ=WITHOUT_COVERAGE) as daemon:
        settings = tmp_path / "memwatchd.toml"

        def reload(number: int) -> None:
            before = daemon.read_log().count("configuration reloaded") + failed_reloads()
            settings.write_text("nonsense = 1\n" if number % 25 == 24 else good[number % 2])
            daemon.process.send_signal(signal.SIGHUP)
            until = time.monotonic() + MAX_WAIT_SECONDS
            while daemon.read_log().count("configuration reloaded") + failed_reloads() == before:
                assert time.monotonic() < until, f"reload {number} was not noticed"
                time.sleep(0.01)

        def failed_reloads() -> int:
            return daemon.read_log().count("keeping the old settings")

        for number in (*range(10), 0, 1):
            reload(number)
        time.sleep(1.0)
        before = (descriptors(daemon.pid), threads(daemon.pid), rss_bytes(daemon))
        for number in (*range(100), 1):  # the last but one is invalid
            reload(number)
        time.sleep(1.0)
        after = (descriptors(daemon.pid), threads(daemon.pid), rss_bytes(daemon))
        with survived(daemon):
            pass

    assert after[:2] == before[:2]
    assert after[2] - before[2] < 4 * MIB


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
