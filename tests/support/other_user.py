"""Requests of another user of this machine, and processes of that user."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become_other()
            with socket.socket() as connection:
                connection.settimeout(MAX_WAIT_SECONDS)
                connection.connect(("127.0.0.1", port))
                connection.sendall(request)
                while piece := connection.recv(1 << 16):
                    os.write(sink, piece)
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as answers:
        found = answers.read()
    os.waitpid(child, 0)
    return found


@contextmanager
def process_of_other() -> Iterator[int]:
    """Run a sleeping process of another user. Yields its pid."""
    child = os.fork()
    if child == 0:
        try:
            become_other()
            time.sleep(MAX_WAIT_SECONDS * 4)
        finally:
            os._exit(0)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def server_of_other(port: int) -> Iterator[int]:
    """Listen at a port as another user, and answer nothing. Yield a pipe with all that clients send.

    The caller closes the pipe.
    """
    source, sink = os.pipe()
    listening = socket.create_server(("127.0.0.1", port))
    child = os.fork()
    if child == 0:
        try:
            become_other()
            while True:
                accepted, _ = listening.accept()
                with accepted:
                    os.write(sink, accepted.recv(1 << 16))
        finally:
            os._exit(0)
    listening.close()
    os.close(sink)
    try:
        yield source
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def become_other() -> None:
    if CAN_SWITCH:
        os.setgroups([])
        os.setgid(OTHER_UID)
        os.setuid(OTHER_UID)
