"""Sockets for http.client with a deadline for the whole exchange and a limit of the bytes that are read."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from _typeshed import WriteableBuffer


@contextmanager
def connected_until(connection: HTTPConnection, deadline: float, max_bytes: int) -> Iterator[None]:
    """Connect, and end the exchange at the deadline, in seconds of `time.monotonic`. Raises OSError.

    Connecting itself has the timeout of the connection.
    """
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    plain = connection.sock
    connection.sock = DeadlineSocket(plain, deadline, max_bytes)
    try:
        yield
    finally:
        connection.close()
        plain.close()


class DeadlineSocket:
    """Socket for http.client. The caller closes the socket that it wraps."""

    def __init__(self, connected: socket.socket, deadline: float, max_bytes: int) -> None:
        self._connected = connected
        self._deadline = deadline
        self._max_bytes = max_bytes

    def sendall(self, data: bytes) -> None:
        self._connected.settimeout(remaining(self._deadline))
        self._connected.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(LimitedReader(self._connected, self._deadline, self._max_bytes))

    def close(self) -> None:
        """Do nothing: the caller closes the socket."""


class LimitedReader(io.RawIOBase):
    """Stream from a socket until the deadline or the limit, which appears as the end of the stream."""

    def __init__(self, connected: socket.socket, deadline: float, max_bytes: int) -> None:
        self._connected = connected
        self._deadline = deadline
        self._left = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._connected.settimeout(remaining(self._deadline))
        space = memoryview(buffer)[: self._left]
        count = self._connected.recv_into(space) if self._left else 0
        self._left -= count
        return count


def remaining(deadline: float) -> float:
    """Return the seconds left, above zero. Raises TimeoutError at the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
