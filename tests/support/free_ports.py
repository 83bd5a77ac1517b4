"""Ports for programs that bind them a little later."""

from __future__ import annotations

import atexit
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST = 20_000


class FreePorts:
    """Ports that no other test gets while this process lives, and that the kernel gives to no connection.

    A process holds a lock on one byte of a file for each port: it ends with the process, and children have no part
    in it.
    """

    def __init__(self, locks: BinaryIO, ports: range) -> None:
        self._locks, begin = locks, os.getpid() * 97 % len(ports)
        self._next: Iterator[int] = chain(ports[begin:], ports[:begin])

    def take(self) -> int:
        """Return a port of 127.0.0.1, another one each time."""
        for port in self._next:
            try:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:  # another process has it
                continue
            if _can_bind(port):
                return port
        raise RuntimeError("no free port is left for this process")


def free_port() -> int:
    """Return a port of 127.0.0.1 that is this process's own."""
    return _ports().take()


@cache
def _ports() -> FreePorts:
    locks = (Path(tempfile.gettempdir()) / f"memwatch-test-ports-{os.getuid()}").open("ab")
    atexit.register(locks.close)
    return FreePorts(locks, range(FIRST, _first_of_connections()))


def _first_of_connections() -> int:
    """Return the lowest port that the kernel gives to outgoing connections."""
    try:
        lowest = int(RANGE.read_text().split()[0])
    except FileNotFoundError:  # not Linux
        lowest = 49_152
    return lowest if lowest > FIRST + 1000 else 65_536


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:  # in use, or waiting for late packets of a connection
            return False
    return True
