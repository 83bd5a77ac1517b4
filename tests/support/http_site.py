"""HTTP servers that are not memwatchd: any of the standard library in a thread, and one with a fixed answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from socketserver import BaseServer

# Bytes for every request, or by the request; None: no answer.
Answer = bytes | Callable[[bytes], bytes] | None


def http(body: bytes, kind: str = "application/json", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Serve in a thread, and close the server at the end."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def site(answer: Answer, path: str = "") -> Iterator[int]:
    """Yield the port of a server that sends `answer` to every client and closes; None: it never answers.

    With a path it is a socket file, and the port is 0.
    """
    listening = socket.socket(socket.AF_UNIX) if path else socket.create_server(("127.0.0.1", 0))
    with listening as listener:
        if path:
            listener.bind(path)
            listener.listen()
        threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
        yield 0 if path else listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, answer: Answer) -> None:
    with ExitStack() as held, suppress(OSError):
        while True:
            connection = held.enter_context(listener.accept()[0])
            if answer is not None:
                request = connection.recv(65536)
                connection.sendall(answer(request) if callable(answer) else answer)
                connection.close()
