"""Check at start that the limits are in force: they depend on parts of uvicorn that it may change in any release.

No network, no thread and no event loop: the protocol gets a transport and a loop that only record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


class LimitsError(Exception):
    """The limits on requests and connections are not in force."""


def check_limits(config: uvicorn.Config) -> None:
    """Raise LimitsError unless the protocol of `config` rejects, times out and counts connections as it must."""
    try:
        if not config.loaded:
            config.load()
        failed = _find_failure(config)
    except Exception as error:  # noqa: BLE001  any error of an untested uvicorn
        failed = f"{type(error).__name__}: {error}"
    if failed is not None:
        raise LimitsError(
            f"the limits for clients are not in force: with uvicorn {uvicorn.__version__}, {failed}. "
            "Install a version that pyproject.toml allows: reinstall memwatchd."
        )


def _find_failure(config: uvicorn.Config) -> str | None:
    for name, sent, status in excessive_requests():
        with connected(config) as trial:
            if not trial.send(sent).startswith(b"HTTP/1.1 %d " % status):
                return f"{name} is not answered with {status}"
    with connected(config) as trial:
        if not _times_out(trial):
            return "half a request does not time out"
    with connected(config) as trial:
        return _check_answer(trial)


def excessive_requests() -> Iterator[tuple[str, bytes, int]]:
    """Yield names of requests, their bytes and the expected status."""
    large = b"x" * 20_000
    yield "a target of 20 kB", b"GET /" + large, 414
    yield "an endless header", GET + b"X: " + large, 431
    yield "a header of 20 kB", GET + b"X: " + large + b"\r\n\r\n", 431
    yield "a header with 200 fields", GET + b"X: y\r\n" * 200 + b"\r\n", 431
    yield "a body of 1 GB", GET + b"Content-Length: 1000000000\r\n\r\n", 413
    yield "a body of unknown length", GET + b"Transfer-Encoding: chunked\r\n\r\n", 411
    yield "a request that is not HTTP", b"\x16\x03\x01 garbage\r\n\r\n", 400


def _times_out(trial: Trial) -> bool:
    trial.send(GET)
    for timer in trial.loop.timers:
        timer.run()
    return trial.transport.is_closing() and trial.transport.written.startswith(b"HTTP/1.1 408 ")


def _check_answer(trial: Trial) -> str | None:
    trial.protocol.app = answer_empty
    trial.send(GET + b"\r\n")
    for work in trial.loop.work:
        run_to_end(work)
    if not trial.transport.written.startswith(b"HTTP/1.1 204 "):
        return "a request is not answered"
    return None if trial.protocol.is_idle() else "an answered connection does not count as idle"


async def answer_empty(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    with suppress(StopIteration):
        work.send(None)


class Trial:
    """One connection, of the client 192.0.2.1 (RFC 5737)."""

    def __init__(self, config: uvicorn.Config) -> None:
        self.loop, self.transport = RecordingLoop(), RecordingTransport()
        make: Any = config.http_protocol_class
        self.protocol = make(config=config, server_state=ServerState(), app_state={}, _loop=self.loop)

    def send(self, data: bytes) -> bytes:
        """Return the answer to these bytes."""
        self.protocol.data_received(data)
        return self.transport.written


@contextmanager
def connected(config: uvicorn.Config) -> Iterator[Trial]:
    trial = Trial(config)
    trial.protocol.connection_made(trial.transport)
    try:
        yield trial
    finally:
        trial.protocol.connection_lost(None)
        for work in trial.loop.work:
            work.close()


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 80)})
        self.written = b""
        self._is_closing = False

    def write(self, data: Any) -> None:  # noqa: ANN401  any buffer
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close


class RecordingLoop:
    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.work: list[Coroutine[Any, Any, None]] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, _delay: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def create_task(self, work: Coroutine[Any, Any, None], **_: object) -> Task:
        self.work.append(work)
        return Task()


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        if self._callback is not None:
            self._callback()


class Task:
    def add_done_callback(self, _: object) -> None: ...
