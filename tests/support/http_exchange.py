"""One request as bytes and its answer, and a check that the daemon logs nothing."""

from __future__ import annotations

import socket

from msgspec import Struct

from support.daemon_process import RunningDaemon
from support.waiting import MAX_WAIT_SECONDS


def assert_quiet(daemon: RunningDaemon) -> None:
    """Check that the daemon is healthy and logged nothing: no client may fill a disk."""
    assert daemon.get("/healthz").status == 200
    assert complaints(daemon) == []


def complaints(daemon: RunningDaemon) -> list[str]:
    """Return log lines other than INFO; lines of a traceback have no level."""
    return [line for line in daemon.read_log().splitlines() if " INFO " not in line]


class Exchange(Struct, frozen=True):
    """Bytes received until the daemon closed."""

    received: bytes

    @property
    def status(self) -> int:
        return int(self.received[9:12])

    @property
    def head(self) -> bytes:
        return self.received.partition(b"\r\n\r\n")[0].lower()

    @property
    def body(self) -> bytes:
        return self.received.partition(b"\r\n\r\n")[2]


def exchange(port: int, sent: bytes) -> Exchange:
    """Send bytes, read until the daemon closes; with a generous timeout, as the API may have to be built first."""
    with socket.create_connection(("127.0.0.1", port), timeout=MAX_WAIT_SECONDS) as connection:
        connection.sendall(sent)
        received = b""
        while part := connection.recv(1 << 20):
            received += part
    return Exchange(received)
