"""Clients of a busy day, faster than in reality: scrapers, API readers, streams and unknown clients."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PAGES = ("/", "/history?range=30d", "/processes", "/alerts", "/about", "/docs")
QUERIES = ("/api/v1/snapshot", "/api/v1/history?points=300", "/api/v1/events?limit=1000", "/readyz")
STREAMS = ("/api/v1/stream", "/live?page=overview", "/live?page=processes")


class Load(Struct):
    """Load from several threads while the context is open, with a count of the answers."""

    port: int
    answers: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _kept: list[http.client.HTTPConnection] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._kept[:] = [http.client.HTTPConnection("127.0.0.1", self.port, timeout=10) for _ in range(2)]
        kept, reader = self._kept
        self._every(0.2, lambda _: self._ask(kept, "/metrics"))
        self._every(0.2, lambda _: self._ask_once("/metrics", Accept=OPENMETRICS, Accept_Encoding="gzip"))
        self._every(0.2, lambda rng: self._ask(reader, rng.choice(QUERIES)))
        self._every(0.5, lambda rng: self._ask_once(rng.choice(PAGES)))
        self._every(0.1, self._send_unknown)
        self._every(0.5, self._listen_without_reading)
        for _ in range(3):
            self._every(0.1, self._listen)
        return self

    def fill(self) -> None:
        """Fill bounded caches, such as that of 1,000 host names: filling them is not growth."""
        rng = random.Random(0)
        for _ in range(6000):
            self._send_unknown(rng)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)
        for connection in self._kept:
            connection.close()

    def _every(self, pause_seconds: float, call: Callable[[random.Random], None]) -> None:
        rng = random.Random(len(self._threads))

        def once() -> None:
            try:
                call(rng)
            except (OSError, http.client.HTTPException) as error:
                self.wrong[type(error).__name__] += 1

        def repeat() -> None:
            while not self._stop.wait(pause_seconds):
                once()

        self._threads.append(threading.Thread(target=repeat, daemon=True))
        self._threads[-1].start()

    def _ask(self, connection: http.client.HTTPConnection, path: str, wanted: int = 200, **headers: str) -> None:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.read()
        self.answers[f"{answer.status}"] += 1
        if answer.status != wanted:
            self.wrong[f"{answer.status} of {path.partition('?')[0]}"] += 1

    def _ask_once(self, path: str, wanted: int = 200, **headers: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            self._ask(connection, path, wanted, **headers)
        finally:
            connection.close()

    def _send_unknown(self, rng: random.Random) -> None:
        """Send a path, query, host name or header value never used before: any state per client would grow."""
        word = f"{rng.getrandbits(64):x}"
        match rng.randrange(4):
            case 0:
                self._ask_once(f"/{word}", 404)
            case 1:
                self._ask_once(f"/api/v1/history?series={word}", 422)
            case 2:
                self._ask_once("/metrics", 400, Host=f"{word}.example")
            case _:
                self._ask_once("/metrics", 200, Accept=f"text/plain; version={word}")

    def _listen(self, rng: random.Random) -> None:
        """Read a stream for some events; half of the clients end it by a reset."""
        with self._open_stream(rng.choice(STREAMS)) as connection:
            until = rng.randrange(1, 40)
            for _ in range(until):
                if self._stop.is_set() or not connection.recv(1 << 16):
                    break
            self.answers["streams"] += 1
            if rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _listen_without_reading(self, rng: random.Random) -> None:
        with self._open_stream(rng.choice(STREAMS)):
            self._stop.wait(rng.uniform(1, 10))
            self.answers["unread streams"] += 1

    def _open_stream(self, path: str) -> socket.socket:
        connection = socket.socket()
        connection.settimeout(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return connection
