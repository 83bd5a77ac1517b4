"""Receivers of webhooks on real sockets: correct, failing, slow or endless."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from msgspec import Struct, field

from support.http_site import serving
from support.waiting import MAX_WAIT_SECONDS


class Delivery(Struct, frozen=True):
    """Request as it arrived."""

    at: float
    path: str
    headers: dict[str, str]
    body: bytes


class Site(Struct):
    """Received requests, ids of those answered with 2xx, and the next answers by status and headers.

    The last answer is repeated. While `may_answer` is cleared, requests wait for their answer.
    """

    answers: list[tuple[int, dict[str, str]]]
    url: str = ""
    deliveries: list[Delivery] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    def next_answer(self) -> tuple[int, dict[str, str]]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def receiving(
    *answers: int | tuple[int, dict[str, str]], certificate: Path | None = None, port: int = 0
) -> Iterator[Site]:
    """Run a receiver, on its own port by default, that gives these answers in turn; by default 200."""
    site = Site([(answer, {}) if isinstance(answer, int) else answer for answer in answers or (200,)])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if len(body) < int(self.headers["Content-Length"]):
                return  # the sender was killed during the request
            headers = {name.lower(): value for name, value in self.headers.items()}
            site.deliveries.append(Delivery(time.monotonic(), self.path, headers, body))
            site.may_answer.wait(MAX_WAIT_SECONDS)
            status, extra = site.next_answer()
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
            if status < 300:
                site.accepted.append(headers.get("webhook-id", ""))

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore clients that reject the certificate."""

    server = Quiet(("127.0.0.1", port), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    site.url = f"{'https' if certificate else 'http'}://localhost:{server.server_address[1]}/hook/token?key=value"
    with serving(server):
        try:
            yield site
        finally:
            site.may_answer.set()


@contextmanager
def raw_receiver(talk: Callable[[socket.socket], None], path: str = "") -> Iterator[str]:
    """Yield the URL of a receiver that passes every connection to `talk`; an OSError there ends the connection.

    `path`: of a socket file in place of a port.
    """
    listener = socket.create_server(("127.0.0.1", 0)) if not path else socket.socket(socket.AF_UNIX)
    if path:
        listener.bind(path)
        listener.listen()
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=_talk, args=(talk, connection), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield path or f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in connections:
            connection.close()


def _talk(talk: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        connection.recv(65_536)
        talk(connection)
    except OSError:
        return


def silent(connection: socket.socket) -> None:
    """Read the request and never answer."""
    connection.recv(1)


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"220 mail.example.com ESMTP\r\n")
    connection.close()


def dripping(connection: socket.socket) -> None:
    """Send a header byte by byte, so that no single read waits for long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


class Endless:
    """Answer of 200 and a body of 2 GB, with a count of the sent bytes."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def __call__(self, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000000\r\n\r\n")
        while True:
            self.sent_bytes += connection.send(b"x" * 65_536)
