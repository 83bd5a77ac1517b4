"""HTTP over a Unix socket."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from typing import Any


class UnixConnection(HTTPConnection):
    """HTTP client connection to the socket file at `path`; `timeout` in seconds. The Host header is `localhost`."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock: socket.socket | Any = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
