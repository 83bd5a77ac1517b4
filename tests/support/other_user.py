"""Requests of another user of this machine, and processes of that user."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.forked import call_in_child, running_in_child
from support.waiting import MAX_WAIT_SECONDS

# Neither root nor the user of the tests. Without root, tests cannot be another user: a proxy's header then has the
# same effect, a request from an unknown user.
OTHER_UID = 54321
CAN_SWITCH = os.geteuid() == 0
MARKED = {} if CAN_SWITCH else {"X-Forwarded-For": "203.0.113.7"}


def ask_as_other(
    port: int, path: str, body: Any = None, method: str = "POST", headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Send a request as another user and return status and JSON."""
    answer = exchange_as_other(port, build_request(path, body, method, {**MARKED, **(headers or {})}))
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def build_request(path: str, body: Any, method: str, headers: Mapping[str, str]) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    fields = {"Host": "localhost", "Connection": "close", "Content-Type": "application/json", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data


def exchange_as_other(port: int, request: bytes) -> bytes:
    """Send bytes as another user and return the answer. Forks: another user may be unable to start this Python."""
    return call_in_child(lambda: _exchange(port, request), become_other)


def _exchange(port: int, request: bytes) -> bytes:
    found = b""
    with suppress(OSError), socket.socket() as connection:
        connection.settimeout(MAX_WAIT_SECONDS)
        connection.connect(("127.0.0.1", port))
        connection.sendall(request)
        while piece := connection.recv(1 << 16):
            found += piece
    return found


def connect_as(uid: int, address: int | Path) -> socket.socket:
    """Return a connection of a user to a port of loopback, or to a socket file, below whatever folder.

    Without root it is one of the user of the tests.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            folder = os.open(address.parent, os.O_PATH) if isinstance(address, Path) else -1
            become_other(uid)
            family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
            with socket.socket(family) as connection:
                connection.connect(
                    f"/proc/self/fd/{folder}/{address.name}"
                    if isinstance(address, Path)
                    else ("127.0.0.1", address)
                )
                socket.send_fds(theirs, [b"x"], [connection.fileno()])
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    connection = socket.socket(fileno=descriptor)
    connection.settimeout(MAX_WAIT_SECONDS)
    return connection


@contextmanager
def process_of_other() -> Iterator[int]:
    """Run a sleeping process of another user. Yields its pid once it is one of that user."""
    source, sink = os.pipe()

    def sleep() -> None:
        os.close(sink)
        time.sleep(MAX_WAIT_SECONDS * 4)

    with running_in_child(become_other, sleep) as child:
        os.close(sink)
        os.read(source, 1)
        os.close(source)
        yield child


@contextmanager
def server_of_other(port: int) -> Iterator[int]:
    """Listen at a port as another user, and answer nothing. Yield a pipe with all that clients send.

    The caller closes the pipe.
    """
    source, sink = os.pipe()
    listening = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            accepted, _ = listening.accept()
            with accepted:
                os.write(sink, accepted.recv(1 << 16))

    with running_in_child(become_other, serve):
        listening.close()
        os.close(sink)
        yield source


def become_other(uid: int = OTHER_UID) -> None:
    if CAN_SWITCH:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
