"""An HTTP proxy on real sockets that resolves names by its list."""

from __future__ import annotations

import base64
import contextlib
import http.client
import select
import socket
import ssl
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct, field

from memwatch_monitor.notify.http_post import Poster, PostResult, Proxy, parse_endpoint
from support.http_site import serving
from support.waiting import MAX_WAIT_SECONDS

BODY = b'{"event": "test"}'
USER, PASSWORD = "memwatchd", "pass:word@1"
# As in a URL.
LOGIN = "memwatchd:pass%3Aword%401@"


class ProxyRequest(Struct, frozen=True):
    """Request line and headers as they arrived, headers in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]


class ProxySite(Struct):
    """Running proxy with the requests that it got. Names it does not know get 502."""

    port: int = 0
    requests: list[ProxyRequest] = field(default_factory=list)

    def url(self, login: str = "") -> str:
        return f"http://{login}127.0.0.1:{self.port}"


@contextlib.contextmanager
def proxying(ports: Mapping[str, int], needs_login: bool = False, port: int = 0) -> Iterator[ProxySite]:
    """Run a proxy that finds each host name at a port of this machine."""
    site = ProxySite()
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def is_refused(self, host: str | None) -> bool:
            headers = {name.lower(): value for name, value in self.headers.items()}
            site.requests.append(ProxyRequest(self.command, self.path, headers))
            if needs_login and headers.get("proxy-authorization") != expected:
                self.send_error(407)
            elif host not in ports:
                self.send_error(502)
            else:
                return False
            return True

        def do_CONNECT(self) -> None:
            host = self.path.rpartition(":")[0]
            if self.is_refused(host):
                return
            with socket.create_connection(("127.0.0.1", ports[host]), MAX_WAIT_SECONDS) as there:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                relay(self.connection, there)
            self.close_connection = True

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.is_refused(parts.hostname):
                return
            there = http.client.HTTPConnection("127.0.0.1", ports[str(parts.hostname)], timeout=MAX_WAIT_SECONDS)
            headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
            there.request("POST", f"{parts.path}?{parts.query}", body, headers)
            answer = there.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            there.close()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore clients that close early."""

    server = Quiet(("127.0.0.1", port), Handler)
    site.port = server.server_address[1]
    with serving(server):
        yield site


def relay(here: socket.socket, there: socket.socket) -> None:
    """Copy bytes in both directions until one side closes. `select` would refuse descriptors from 1,024 on."""
    other = {here.fileno(): (here, there), there.fileno(): (there, here)}
    poll = select.poll()
    for number in other:
        poll.register(number, select.POLLIN)
    while ready := poll.poll(MAX_WAIT_SECONDS * 1000):
        for number, _ in ready:
            source, target = other[number]
            data = source.recv(65_536)
            if not data:
                return
            target.sendall(data)


def post_to(url: str, proxy: Proxy, tls: ssl.SSLContext | None = None, seconds: float = 5.0) -> PostResult:
    return Poster(parse_endpoint(url), seconds, False, tls, lambda: 0.0, proxy=proxy).post({"X-A": "b"}, BODY)


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))
