"""Server under test with a small application, and clients that control every byte.

Both run in an event loop with a virtual clock and are connected by Unix sockets, which deliver at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from memwatchd.http_server.limits import Limits
from memwatchd.http_server.protocol import AtOnce
from memwatchd.http_server.server import Server
from support.virtual_loop import run_virtual
from support.waiting import MAX_WAIT_SECONDS

HOST = b"Host: localhost\r\n"
WHOLE = b"GET /whole HTTP/1.1\r\n" + HOST + b"\r\n"
QUICK = Limits(receive_seconds=0.3, take_seconds=0.3)


class Application:
    """/whole answers at once, /large with 60 kB, /slow after one second, /stream ten times, /flood endlessly."""

    def __init__(self) -> None:
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await getattr(self, scope["path"].lstrip("/"))(receive, send)
            await send({"type": "http.response.body", "body": scope["path"].encode()})
        finally:
            self.running -= 1

    async def whole(self, _receive: Receive, _send: Send) -> None:
        """Send only the end."""

    async def large(self, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": bytes(60_000), "more_body": True})

    async def slow(self, _receive: Receive, _send: Send) -> None:
        await asyncio.sleep(1.0)

    async def stream(self, _receive: Receive, send: Send) -> None:
        for _ in range(10):
            await send({"type": "http.response.body", "body": b"tick", "more_body": True})
            await asyncio.sleep(0.1)

    async def flood(self, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            await asyncio.sleep(0)


async def until_running(app: Application, requests: int) -> float:
    """Return the seconds until the application handles this number of requests, with a resolution of 10 ms."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def poll() -> None:
        while app.running != requests:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), MAX_WAIT_SECONDS)
    return loop.time() - began


def whole_at_once(_fields: object, _peer: object) -> bytes:
    """Return the exact answer of /whole."""
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\n/whole\r\n0\r\n\r\n"


class Client:
    """One connection to the server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> bytes:
        """Return one chunked answer, to its last byte."""
        return await asyncio.wait_for(self._reader.readuntil(b"0\r\n\r\n"), MAX_WAIT_SECONDS)

    async def bytes_of(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        return await asyncio.wait_for(self._reader.readexactly(length), MAX_WAIT_SECONDS)

    async def rest(self, seconds: float = MAX_WAIT_SECONDS) -> bytes:
        """Return all bytes received until the server closes the connection in any way."""
        found = bytearray()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(self._read_into(found), seconds)
        return bytes(found)

    async def receive_for(self, seconds: float) -> bytes:
        """Return all bytes received in this time, or until the server closes."""
        found = bytearray()
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            await asyncio.wait_for(self._read_into(found), seconds)
        return bytes(found)

    def stop_reading(self) -> None:
        """Leave what arrives in the buffers of the sockets."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def _read_into(self, found: bytearray) -> None:
        while part := await self._reader.read(65536):
            found.extend(part)


Connect = Callable[[], Awaitable[Client]]
Talk = Callable[[Connect, Application], Awaitable[Any]]


class SmallBuffers(socket.socket):
    """Listening socket whose connections take 4 kB from the server before the client reads."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return connection, address


def served(
    limits: Limits, talk: Talk, at_once: Mapping[bytes, AtOnce], keep_alive_seconds: float | None = None
) -> Any:
    """Run `talk` against a server with these limits and return its result."""

    async def run() -> Any:
        listener = SmallBuffers(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("")  # a free abstract name, given by the kernel
        listener.listen()
        app = Application()
        server = Server(app, limits, at_once=at_once)
        if keep_alive_seconds is not None:
            server.config.timeout_keep_alive = keep_alive_seconds  # type: ignore[assignment]
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        writers: list[asyncio.StreamWriter] = []

        async def connect() -> Client:
            reader, writer = await asyncio.open_unix_connection(listener.getsockname(), limit=1 << 20)
            writers.append(writer)
            return Client(reader, writer)

        while not server.started:  # its backlog grows when it has started
            await asyncio.sleep(0.01)
        try:
            return await talk(connect, app)
        finally:
            for writer in writers:
                writer.transport.abort()
            server.stop()
            await serving

    return run_virtual(run())


class Closed(Struct, frozen=True):
    """Bytes received until the daemon closed, and virtual seconds until then."""

    rest: bytes
    seconds: float


async def until_closed(client: Client, sent: bytes = b"") -> Closed:
    loop = asyncio.get_running_loop()
    began = loop.time()
    client.send(sent)
    rest = await client.rest()
    return Closed(rest, loop.time() - began)
