"""TCP proxy that delays data as a lossy link does: netem needs a kernel module that many machines lack."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Linux's minimum retransmission timeout. It doubles with each loss of the same segment (RFC 6298).
TIMEOUT_SECONDS = 0.2
LATENCY_SECONDS = 0.02


def loss_delay(loss: float, draw: random.Random) -> float:
    """Return how long TCP takes to repeat a segment until it is not lost."""
    timeout, delay = TIMEOUT_SECONDS, 0.0
    while draw.random() < loss:
        delay, timeout = delay + timeout, 2 * timeout
    return delay


class Link:
    """A proxy to a port that loses this part of the segments in both directions."""

    def __init__(self, listener: socket.socket, port: int, loss: float, seed: int) -> None:
        self._listener, self._port, self._loss = listener, port, loss
        self._draw = random.Random(seed)
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
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def cut(self) -> None:
        """End all connections and accept no more."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(1400):
                time.sleep(LATENCY_SECONDS + loss_delay(self._loss, self._draw))
                target.sendall(data)


@contextmanager
def lossy_link(port: int, loss: float, seed: int) -> Iterator[Link]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(listener, port, loss, seed)
        threading.Thread(target=link.run, daemon=True).start()
        yield link
        link.cut()
