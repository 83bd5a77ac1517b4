"""HTTP proxy for tests that only connects: CONNECT to any host, without authentication."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

IDLE_SECONDS = 60.0
MAX_HEAD_BYTES = 8192


class ConnectProxy:
    """Context manager with a listening proxy. `targets` are the hosts and ports that clients connected to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.targets: list[str] = []

    def __enter__(self) -> ConnectProxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(IDLE_SECONDS)
        with client, suppress(OSError, ValueError):
            head = read_head(client)
            method, target, _ = head.split(b" ", 2)
            if method != b"CONNECT":
                client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                return
            host, _, port = target.decode().rpartition(":")
            with socket.create_connection((host, int(port)), IDLE_SECONDS) as server:
                self.targets.append(target.decode())
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=forward, args=(server, client), daemon=True)
                back.start()
                forward(client, server)
                back.join(IDLE_SECONDS)


def read_head(client: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
        piece = client.recv(4096)
        if not piece:
            break
        head += piece
    return head


def forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
