"""Ports for programs that bind them a little later."""

from __future__ import annotations

import os
import socket
from collections import deque

# Each holds a descriptor of this process, which may have 1,024. A test uses a few ports.
MAX_HELD = 200

# Descriptors: a socket object would warn at the end of the process that it was not closed.
_held: deque[int] = deque()


def free_port() -> int:
    """Return a port of 127.0.0.1 that no other program gets, nor a connection: this process has bound it.

    It does not listen, so that a server may bind the port as well if it sets SO_REUSEADDR or SO_REUSEPORT, as all
    do here. It stays bound until the end of the test, or, in other programs, until 200 others are.
    """
    if len(_held) == MAX_HELD:
        os.close(_held.popleft())
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    port = int(held.getsockname()[1])
    _held.append(held.detach())
    return port


def release() -> None:
    """Close the sockets of all ports. A server that listens keeps its port."""
    while _held:
        os.close(_held.popleft())
