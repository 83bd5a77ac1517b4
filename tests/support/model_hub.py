"""A hub of models on loopback: list of files, redirects of large files to a second server, range requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef" * 2 + "01234567"


class ModelHub:
    """Files by name, each with its first bytes and its size. Attributes change how it answers.

    `log`: path, Range and Authorization of each request, with the name of the server that got it.
    """

    def __init__(self, files: Mapping[str, tuple[bytes, int]]) -> None:
        self.files = dict(files)
        self.sha = SHA
        self.status: dict[str, int] = {}
        self.sizes: dict[str, Any] = {}
        self.redirects: dict[str, str] = {}
        self.has_sizes = True
        self.knows_ranges = True
        self.cut: set[str] = set()
        # Names that are answered when the hub stops.
        self.silent: set[str] = set()
        self._is_over = threading.Event()
        self.log: list[tuple[str, str, str, str]] = []
        self.hub = self._start("hub")
        self.storage = self._start("storage")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.hub.server_port}"

    @property
    def requested(self) -> list[str]:
        return [path for _, path, _, _ in self.log]

    def stop(self) -> None:
        self._is_over.set()
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def _start(self, name: str) -> ThreadingHTTPServer:
        model_hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = (self.headers.get("Range", ""), self.headers.get("Authorization", ""))
                model_hub.log.append((name, self.path, *headers))
                model_hub.answer(self, name)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def answer(self, handler: BaseHTTPRequestHandler, server: str) -> None:
        path = unquote(urlsplit(handler.path).path)
        if path.startswith("/api/models/"):
            self._send(handler, self.status.get("api", 200), json.dumps(self.repository()).encode())
            return
        name = path.removeprefix("/x/") if server == "storage" else path.partition(f"/resolve/{self.sha}/")[2]
        if name in self.status:
            self._send(handler, self.status[name], b"no")
        elif name not in self.files:
            self._send(handler, 404, b"no")
        elif server == "hub" and name in self.redirects:
            self._send(handler, 302, b"", Location=self.redirects[name])
        elif server == "hub" and name.endswith((".safetensors", ".gguf")):
            self._send(handler, 302, b"", Location=f"http://127.0.0.1:{self.storage.server_port}/x/{name}")
        else:
            self._file(handler, name)

    def repository(self) -> dict[str, Any]:
        sizes = {name: self.sizes.get(name, size) for name, (_, size) in self.files.items()}
        siblings = [
            {"rfilename": name, **({"size": size} if self.has_sizes else {})} for name, size in sizes.items()
        ]
        return {"id": "org/model", "sha": self.sha, "siblings": siblings}

    def _file(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        data, size = self.files[name]
        wanted = handler.headers.get("Range", "").removeprefix("bytes=0-")
        if name in self.silent:
            self._is_over.wait()
        if wanted.isdigit() and self.knows_ranges:
            end = min(int(wanted) + 1, size)
            part = (data + bytes(max(0, end - len(data))))[:end]
            content_range = f"bytes 0-{end - 1}/{self.sizes.get(name, size)}"
            self._send(handler, 206, part, len(part), name in self.cut, **{"Content-Range": content_range})
        else:
            self._send(handler, 200, data, size, name in self.cut)

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        length: int | None = None,
        cut: bool = False,
        **headers: str,
    ) -> None:
        handler.send_response(status)
        for header, value in headers.items():
            handler.send_header(header, value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        try:
            handler.wfile.write(body[: len(body) // 2] if cut else body)
            handler.wfile.flush()
        except OSError:
            pass
        handler.close_connection = True


@contextmanager
def running_hub(files: Mapping[str, tuple[bytes, int]]) -> Iterator[ModelHub]:
    hub = ModelHub(files)
    try:
        yield hub
    finally:
        hub.stop()
