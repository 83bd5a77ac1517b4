"""Small HTTP servers on loopback that answer as an engine does, or as badly as a server can."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support import engine_texts
from support.http_site import serving
from support.waiting import MAX_WAIT_SECONDS

Answer = bytes | Callable[["Handler"], None]


class EngineSite:
    """A running server: its port, the requests that it got, and its answers, which may be replaced."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers: dict[str, Answer] = dict(answers)
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.server: ThreadingHTTPServer = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.site = self  # type: ignore[attr-defined]

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site: EngineSite = self.server.site  # type: ignore[attr-defined]
        site.requests.append((self.command, self.path))
        site.headers.append(dict(self.headers))
        answer = site.answers.get(self.path)
        if callable(answer):
            with contextlib.suppress(OSError):
                answer(self)
        else:
            self.reply(404 if answer is None else 200, answer or b"{}")

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be silent."""


@contextlib.contextmanager
def engine_site(answers: Mapping[str, Answer]) -> Iterator[EngineSite]:
    site = EngineSite(answers)
    with serving(site.server):
        yield site


@contextlib.contextmanager
def engine_process(kind: str) -> Iterator[int]:
    """Yield the port of a server in a separate process: threads here would take the interpreter's lock."""
    command = [sys.executable, "-m", "support.engine_servers", kind]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=MAX_WAIT_SECONDS)


def main(kind: str) -> None:
    """Serve the answers of an engine until the end of the input."""
    with engine_site(getattr(engine_texts, kind)()) as site:
        print(site.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
