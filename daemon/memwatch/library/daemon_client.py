"""The daemon of this machine, if one answers. That none does is remembered, so that asking again costs nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memwatch.library.never_raise import complain
from memwatch.runtime.unix_http import UnixConnection

Json = Any
DEFAULT_URL = "http://127.0.0.1:6360"
SILENT_SECONDS = 30.0
CONNECT_SECONDS = 2.0
# An idle daemon makes its API for the first who asks, which takes a board seconds. For those who wait in a thread.
ANSWER_SECONDS = 20.0
MOST_ANSWER_BYTES = 16 << 20


class Daemon:
    """`url` is http://HOST:PORT, https://HOST:PORT or unix:/PATH. Any thread may ask."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._silent_until = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether it was asked lately and did not answer."""
        return time.monotonic() < self._silent_until

    def get(self, path: str, seconds: float = CONNECT_SECONDS) -> Json | None:
        """What it answers, None where there is no answer."""
        return self._ask("GET", path, None, seconds, seconds)

    def post(self, path: str, body: Json) -> Json | None:
        """The same, for a thread that keeps nobody waiting."""
        return self._ask("POST", path, json.dumps(body).encode(), CONNECT_SECONDS, ANSWER_SECONDS)

    def connection(self, seconds: float) -> tuple[HTTPConnection, str]:
        """A connection, not yet made, and what stands before every path. Raises ValueError for a bad address."""
        if self.url.startswith("unix:"):
            return UnixConnection(self.url.removeprefix("unix:").removeprefix("//"), seconds), ""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(
                f'MEMWATCH_URL is "{self.url[:80]}"; for example {DEFAULT_URL} or unix:/run/memwatchd.sock'
            )
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname, parts.port, timeout=seconds), parts.path.rstrip("/")

    def _ask(self, method: str, path: str, body: bytes | None, seconds: float, patience: float) -> Json | None:
        """Connect within so many seconds, and wait so long for each part of the answer."""
        if self.is_silent:
            return None
        try:
            connection, prefix = self.connection(seconds)
            try:
                connection.connect()
                connection.sock.settimeout(patience)
                headers = {"Content-Type": "application/json"} if body else {}
                connection.request(method, prefix + path, body, headers)
                response = connection.getresponse()
                answer = response.read(MOST_ANSWER_BYTES)
            finally:
                connection.close()
            return json.loads(answer) if response.status == 200 else None
        except (OSError, HTTPException, RecursionError):
            self.rest()
        except ValueError as error:
            complain(str(error))
            self.rest()
        return None

    def rest(self) -> None:
        """Do not ask for a while."""
        self._silent_until = time.monotonic() + SILENT_SECONDS


def roots_of(environ: Mapping[str, str]) -> tuple[Path, Path, Path]:
    """Where the host is, by the same words that the daemon takes."""
    folders = (environ.get("MEMWATCHD_PROCFS"), environ.get("MEMWATCHD_SYSFS"), environ.get("MEMWATCHD_ROOTFS"))
    proc, sysfs, root = (folder or usual for folder, usual in zip(folders, ("/proc", "/sys", "/"), strict=True))
    return Path(proc), Path(sysfs), Path(root)


def url_of(environ: Mapping[str, str]) -> str:
    return environ.get("MEMWATCH_URL") or DEFAULT_URL


daemon = Daemon(url_of(os.environ))
