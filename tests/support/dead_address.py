"""Address at which no server answers, for as long as the process lives."""

from __future__ import annotations

import atexit
import socket
from functools import cache

from support.open_things import kept_open


@cache
def _bound() -> socket.socket:
    """Bind a port without listening: connections are refused, and no other program can get the port."""
    with kept_open():
        held = socket.socket()
    atexit.register(held.close)
    held.bind(("127.0.0.1", 0))
    return held


def dead_port() -> int:
    return int(_bound().getsockname()[1])


def dead_address() -> str:
    """Return HOST:PORT of an address of this machine that refuses connections."""
    return f"127.0.0.1:{dead_port()}"
