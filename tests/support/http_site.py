"""Somebody who answers HTTP and is no memwatchd, or one that says what a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress


def http(body: bytes, kind: str = "application/json", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def site(answer: bytes | None) -> Iterator[int]:
    """The port of a server that says `answer` to everybody and hangs up; None: that says nothing, ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, answer: bytes | None) -> None:
    with ExitStack() as held, suppress(OSError):
        while True:
            connection = held.enter_context(listener.accept()[0])
            if answer is not None:
                connection.recv(65536)
                connection.sendall(answer)
                connection.close()
