"""TCP proxy to a port that can be cut, as a cable can."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Link:
    """A proxy to a port of this machine."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener, self._port = listener, port
        self._open: list[socket.socket] = [listener]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Accept connections until the link is cut."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=pair, daemon=True).start()

    def cut(self) -> None:
        """End all connections and accept no more."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError), source, target:
        while data := source.recv(65536):
            target.sendall(data)


@contextmanager
def link_to(port: int) -> Iterator[Link]:
    """Yield a link, which is cut at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(listener, port)
        threading.Thread(target=link.run, daemon=True).start()
        yield link
        link.cut()
