"""Socket for http.client with a deadline for all reads and writes, and a limit on the bytes read."""

from __future__ import annotations

import io
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Most bytes read of a response, headers and body. Only the status line and headers are used; the body is read so
# that the connection is not reset while the receiver still sends.
MAX_READ_BYTES = 64 * 1024


class DeadlineSocket:
    """Socket for http.client with a deadline and a limit of the bytes that are read."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected = connected
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._connected.settimeout(remaining(self._deadline))
        self._connected.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(LimitedReader(self._connected, self._deadline))

    def close(self) -> None:
        """Do nothing: the owner closes the socket."""


class LimitedReader(io.RawIOBase):
    """Stream from a socket until the deadline or the limit, which appears as the end of the stream."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected = connected
        self._deadline = deadline
        self._left = MAX_READ_BYTES

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
