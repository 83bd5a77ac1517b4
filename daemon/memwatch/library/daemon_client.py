"""Client of this machine's daemon. A failure is cached for a while, so that repeated requests cost nothing."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from memwatch.core.http import DEFAULT_PORTS, DeadlineSocket, GetError, request
from memwatch.core.linux.daemon_connection import (
    ANSWER_SECONDS,
    SOCKET_FILE,
    TCP_URL,
    build_headers,
    connect_daemon,
    default_url,
    is_on_this_machine,
)
from memwatch.library.program_safety import importing, log_once

if TYPE_CHECKING:
    from http.client import HTTPResponse

Json = Any
SILENT_SECONDS = 30.0
CONNECT_SECONDS = 2.0
MAX_ANSWER_BYTES = 16 << 20


class NoDaemonError(ConnectionError):
    """MEMWATCH_URL names another machine, and no daemon answers there. This machine is not read in its place."""


class Daemon:
    """Client of a daemon at http://HOST:PORT, https://HOST:PORT or unix:/PATH. Thread-safe.

    Without a URL it is the daemon of this machine: its socket file or TCP port, chosen for each request, because
    the daemon may start after this program.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url
        if url is not None and not url.isascii():
            # Such a name needs this codec. Threads connect, and should not import: see `program_safety`.
            codecs.lookup("idna")
        self._silent_until = 0.0
        self._is_here: bool | None = None

    @property
    def url(self) -> str:
        return self._url or default_url()

    @property
    def is_here(self) -> bool:
        """True for a daemon of this machine, which a direct reading can replace. False if the URL is invalid."""
        if self._is_here is None:
            try:
                self._is_here = self._url is None or is_on_this_machine(*self._address()[:2])
            except ValueError:
                self._is_here = False
        return self._is_here

    def require_here(self) -> None:
        """Raise NoDaemonError if the daemon, which did not answer, is not one of this machine."""
        if not self.is_here:
            from memwatch.core.redaction import redact_text  # needed only after a mistake

            raise NoDaemonError(
                f'no answer from memwatchd at MEMWATCH_URL "{redact_text(self.url)[:80]}", and this machine is not '
                "read in its place; start memwatchd there, or unset MEMWATCH_URL to read this machine"
            )

    @property
    def is_silent(self) -> bool:
        """True if a recent request failed. Requests then return None without connecting."""
        return time.monotonic() < self._silent_until

    def get(self, path: str, seconds: float = CONNECT_SECONDS) -> Json | None:
        """Return the decoded response, None on failure."""
        return self._ask("GET", path, None, seconds, seconds)

    def post(self, path: str, body: Json) -> Json | None:
        """Post JSON and return the decoded response, None on failure. For background threads: waits longer."""
        with importing:
            import json  # msgspec refuses lone surrogates, which texts of a program may have

        return self._ask("POST", path, json.dumps(body).encode(), CONNECT_SECONDS, ANSWER_SECONDS)

    @contextmanager
    def stream(self, path: str, seconds: float) -> Iterator[HTTPResponse]:
        """Return the response to a GET, with a timeout for each read. Raises as `_ask` handles it."""
        scheme, host, port, prefix = self._address()
        with connect_daemon(scheme, host, port, seconds) as connected:
            connected.settimeout(seconds)
            http_error()
            yield request(connected, "GET", prefix + path, build_headers(scheme, host, port))

    def _address(self) -> tuple[str, str, int, str]:
        """Return scheme, host or socket file, port, and the prefix of all paths. Raises ValueError if invalid."""
        url = self.url
        if url.startswith("unix:"):
            return "unix", url.removeprefix("unix:").removeprefix("//"), 0, ""
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or parts.hostname is None:
            from memwatch.core.redaction import redact_text  # needed only after a mistake

            raise ValueError(
                f'MEMWATCH_URL is "{redact_text(url)[:80]}", which is not a daemon\'s URL; '
                f"for example {TCP_URL} or unix:{SOCKET_FILE}"
            )
        return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/")

    def _ask(self, method: str, path: str, body: bytes | None, seconds: float, backoff: float) -> Json | None:
        """Connect within `seconds` and wait up to `backoff` seconds for the response."""
        if self.is_silent:
            return None
        deadline = time.monotonic() + seconds + backoff
        try:
            scheme, host, port, prefix = self._address()
            headers = build_headers(scheme, host, port) | ({"Content-Type": "application/json"} if body else {})
            with connect_daemon(scheme, host, port, seconds) as connected:
                http_error()
                limited = DeadlineSocket(connected, deadline, MAX_ANSWER_BYTES)
                response = request(limited, method, prefix + path, headers, body)
                answer = response.read(MAX_ANSWER_BYTES)
            return msgspec.json.decode(answer) if response.status == 200 else None
        except (OSError, RecursionError):
            self.rest()
        except (GetError, ValueError) as error:
            log_once(str(error))
            self.rest()
        except http_error():
            self.rest()
        return None

    def rest(self) -> None:
        """Make no requests for `SILENT_SECONDS`."""
        self._silent_until = time.monotonic() + SILENT_SECONDS


def http_error() -> type[Exception]:
    """Return HTTPException. Its module is imported once a daemon was found: it is a quarter of the first call."""
    with importing:
        from http.client import HTTPException
    return HTTPException


def read_roots(environ: Mapping[str, str]) -> tuple[Path, Path, Path]:
    """Return the host's procfs, sysfs and root paths, from the daemon's environment variables."""
    folders = (environ.get("MEMWATCHD_PROCFS"), environ.get("MEMWATCHD_SYSFS"), environ.get("MEMWATCHD_ROOTFS"))
    proc, sysfs, root = (folder or usual for folder, usual in zip(folders, ("/proc", "/sys", "/"), strict=True))
    return Path(proc), Path(sysfs), Path(root)


def read_url(environ: Mapping[str, str]) -> str | None:
    return environ.get("MEMWATCH_URL") or None


daemon: Daemon = Daemon(read_url(os.environ))
