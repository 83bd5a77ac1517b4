"""Machines that follow each other, and servers that send hostile streams in place of a neighbour."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.daemon_process import RunningDaemon

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
Send = Callable[[socket.socket], None]


def neighbours(urls: Mapping[str, str], **keys: str) -> str:
    """Return the tables of these neighbours, each with the same further keys."""
    further = "".join(f'{name} = "{value}"\n' for name, value in keys.items())
    return "".join(f'[[neighbours]]\nname = "{name}"\nurl = "{url}"\n{further}' for name, url in urls.items())


def machine(daemon: RunningDaemon, name: str) -> Any:
    """Return a neighbour as its follower has it, with its past."""
    return daemon.get(f"/api/v1/machines/{name}").json


def wait_for_state(
    daemon: RunningDaemon, name: str, state: str, seconds: float = 60.0, headers: Mapping[str, str] | None = None
) -> Any:
    path = f"/api/v1/machines/{name}"  # 404 until a reload has added it
    return daemon.wait_for(path, lambda found: found.get("state") == state, seconds, headers)


def tick_data(**fields: Any) -> bytes:
    """Return a valid tick, or one with other fields."""
    tick = {
        "schema": 1,
        "run": "simulated",
        "host": "simulated",
        "unix": time.time(),
        "interval": 1.0,
        "level": "low",
        "sentence": "System RAM is OK: 10.0% used",
        "pools": [
            {"id": "ram", "label": "System RAM", "size": 128 << 30, "used": 13 << 30, "available": 115 << 30}
        ],
        "holders": [{"name": "vllm", "bytes": 96 << 30}],
    }
    return json.dumps(tick | fields).encode()


def event(data: bytes) -> bytes:
    return b"event: tick\ndata: " + data + b"\n\n"


@contextmanager
def serving(send: Send, reads: bool = True) -> Iterator[str]:
    """Yield the URL of a server that calls `send` with each connection, after its request if it `reads` that."""

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if reads:
                connection.recv(65536)
            send(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def answers(data: bytes) -> Send:
    """Send this and wait for the client to close."""

    def send(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.recv(1)

    return send


def streams(make: Callable[[], bytes], pause_seconds: float = 0.0) -> Send:
    """Send a stream without an end, one piece after the other."""

    def send(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        while True:
            connection.sendall(make())
            time.sleep(pause_seconds)

    return send


def folder(tmp_path: Path, name: str) -> Path:
    """Return a folder for one of several daemons."""
    made = tmp_path / name
    made.mkdir()
    return made
