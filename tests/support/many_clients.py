"""Many concurrent clients on real sockets, read in the background."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from support.daemon_process import RunningDaemon
from support.hostile_requests import HOST
from support.waiting import MAX_WAIT_SECONDS

SLOW_READER_BYTES = 2048
# The largest file that is served.
LARGEST = b"GET /static/vendor/swagger-ui-bundle-5.35.0.js HTTP/1.1\r\n" + HOST + b"\r\n"


@contextmanager
def connections(daemon: RunningDaemon, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Yield connections that have sent the same bytes; close them at the end."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            one = stack.enter_context(
                socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS)
            )
            one.sendall(sent)
            opened.append(one)
        yield opened


class Crowd:
    """Connections read in the background, with the first bytes of each answer, its number of events, and the time
    it was closed."""

    def __init__(self, members: list[socket.socket]) -> None:
        self.first: dict[socket.socket, bytes] = {}
        self.events: Counter[socket.socket] = Counter()
        self.closed_at: dict[socket.socket, float] = {}
        self._members = members
        self._stop = threading.Event()
        self._reading = threading.Thread(target=self._read)

    def __enter__(self) -> Crowd:
        self._reading.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._reading.join()

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for member in self._members:
                selector.register(member, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in selector.select(0.05):
                    self._take(selector, key.fileobj)

    def _take(self, selector: selectors.BaseSelector, member: Any) -> None:
        try:
            part = member.recv(1 << 18)
        except OSError:
            part = b""
        if part:
            self.first.setdefault(member, part)
            self.events[member] += part.count(b"event: ")
        else:
            self.closed_at[member] = time.monotonic()
            selector.unregister(member)


@contextmanager
def slow_readers(daemon: RunningDaemon, count: int, sent: bytes) -> Iterator[None]:
    """Keep clients connected that send a request and read almost nothing of the answer."""
    with ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_READER_BYTES)
            one.connect(("127.0.0.1", daemon.port))
            one.sendall(sent)
        yield
