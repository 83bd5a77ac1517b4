"""A Host header with a tab gets 400 on every way into a daemon."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.certificates import authority, signed_by, tls_config
from support.daemon_process import running_daemon
from support.waiting import MAX_WAIT_SECONDS

NEEDED_PROGRAMS = ("openssl",)
TABBED = (b"localhost\t", b"local\thost", b"localhost:6360\t", b"localhost:6360\tevil.example")
PATHS = (b"/healthz", b"/metrics", b"/", b"/api/v1/snapshot", b"/static/nothing")


def statuses(connect: Callable[[], socket.socket]) -> Iterator[int]:
    """Yield the status of each request, sent after a right one on the same connection."""
    for path in PATHS:
        for host in TABBED:
            with connect() as connection:
                connection.settimeout(MAX_WAIT_SECONDS)
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                connection.sendall(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path, host))
                received = b""
                while part := connection.recv(1 << 16):
                    received += part
            assert received.startswith(b"HTTP/1.1 200 ")
            yield int(received.rpartition(b"HTTP/1.1 ")[2][:3])


@pytest.mark.parametrize("secure", [False, True])
def test_host_with_a_tab_is_refused_on_every_way(tmp_path: Path, secure: bool) -> None:
    """TCP, TLS and the socket file, on a kept connection, before and after the API is loaded."""
    ca = authority(tmp_path)
    context: ssl.SSLContext | None = ca.context_of_client() if secure else None
    config = tls_config(signed_by(ca)) if secure else ""
    file = str(tmp_path / "socket")
    with running_daemon(tmp_path, "--listen", f"unix:{file}", config=config, tls=context) as daemon:

        def over_tcp() -> socket.socket:
            plain = socket.create_connection(("127.0.0.1", daemon.port))
            return plain if context is None else context.wrap_socket(plain, server_hostname="localhost")

        def over_file() -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(file)
            return connection

        before = [*statuses(over_tcp), *statuses(over_file)]
        assert daemon.get("/api/v1/snapshot").status == 200
        after = [*statuses(over_tcp), *statuses(over_file)]

    assert {*before, *after} == {400}
