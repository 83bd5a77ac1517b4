"""The connections to one followed machine: one, and more while its tick is late. Each has deadlines and limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from httptools import HttpParserError, HttpResponseParser

from memwatch.core.http import GATEWAY_STATUSES, GetError
from memwatch.core.linux.key_owner import KeyOwner
from memwatch.core.linux.tcp_peer import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS
from memwatch.core.printable import describe_error
from memwatch_monitor.neighbours.neighbour import Failure
from memwatch_monitor.neighbours.tick import TickError
from memwatchd.settings.endpoints import Peer

CONNECT_SECONDS = ANSWER_SECONDS = 5.0
# A stream sends a comment every 15 s at least. Parts of one do not count: a byte now and then is no answer.
QUIET_SECONDS = 20.0
MAX_HEAD_BYTES = 16 << 10
# 20 ticks a second at most have 20 KiB. More is read later: the sender waits.
MAX_BYTES_PER_SECOND = 64 << 10
PAUSE_SECONDS = 1.0
# Alerts of TLS (RFC 8446, 6.2) and errors of OpenSSL, as Python names them.
TLS_REASONS = {
    "certificate required": "it asks for a client certificate: set cert_file",
    "handshake failure": "it accepts no common cipher or asks for a client certificate: set cert_file",
    "unknown ca": "it does not accept the client certificate: use one of the authority in its client_ca_file",
    "certificate expired": "it does not accept the client certificate, which has expired: renew it",
    "bad certificate": "it does not accept the client certificate: check cert_file",
    "wrong version number": "it does not answer in TLS: use http, or configure [web.tls] there",
    "record layer failure": "it does not answer in TLS: use http, or configure [web.tls] there",
}
UNANSWERED = " after the TLS handshake without an answer: if it asks for a client certificate, check cert_file"
EVENTS, PROBLEM = b"text/event-stream", b"application/problem+json"
# A tick has at most 4 KiB; comments and the names of fields add little.
MAX_EVENT_BYTES = 8 << 10
TICK = b"tick"
# TCP doubles its pause with each lost segment. At 30 % loss both ways one tick of 65 came more than 10 s late on
# one connection (November 2026). A further connection begins with short pauses.
MAX_CONNECTIONS = 4
FURTHER_SECONDS = 2.0


class Connection(asyncio.Protocol):
    """Protocol of one connection. `ended` has the reason of its end. `take` raises TickError for invalid data."""

    def __init__(self, peer: Peer, take: Callable[[bytes], None]) -> None:
        self.ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.has_ticks = False
        self._peer, self._take = peer, take
        self._parser: Any = HttpResponseParser(self)
        self._events = EventParser()
        self._type = b""
        self._answered = False
        self.head_bytes: int = 0
        self._window_at = self._heard_at = asyncio.get_running_loop().time()
        self._window_bytes = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  narrows the type
        self._transport = transport
        transport.write(self._peer.request())

    def data_received(self, data: bytes) -> None:
        self._limit_rate(len(data))
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            # The parser wraps what its callbacks raise.
            cause = error.__context__ if isinstance(error.__context__, TickError) else None
            self._end("refused", f"it sends {cause}" if cause else "it does not answer in HTTP")
            return
        if not self._answered:
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self._end("refused", f"its answer has no end within {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        failure = explain_error(exc) if exc else Failure("down", self._closed_text)
        self._end(failure.kind, failure.text)

    @property
    def _closed_text(self) -> str:
        # asyncio closes without the alert of TLS that would name the reason (CPython 3.10 to 3.14).
        is_after_handshake = self._peer.tls is not None and not self._answered
        return f"connection closed{UNANSWERED if is_after_handshake else ''}"

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._type = value.partition(b";")[0].strip().lower()

    def on_headers_complete(self) -> None:
        self._answered = True
        self._heard_at = asyncio.get_running_loop().time()
        status = self._parser.get_status_code()
        if status == 200 and self._type == EVENTS:
            return
        # memwatchd's own 503 is problem+json.
        is_proxy = status in GATEWAY_STATUSES or (status == 503 and self._type != PROBLEM)
        self._end("down" if is_proxy else "refused", explain(status))

    def on_body(self, body: bytes) -> None:
        if self.ended.done():
            return
        count = self._events.count
        for data in self._events.feed(body):
            self._take(data)
            self.has_ticks = True
        if self._events.count > count:
            self._heard_at = asyncio.get_running_loop().time()

    def on_message_complete(self) -> None:
        self._end("ended", "its stream ended")

    def is_overdue(self, now: float) -> bool:
        """Return True if no head of the answer, or no complete event, came for too long."""
        return now - self._heard_at > (QUIET_SECONDS if self._answered else ANSWER_SECONDS)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self, kind: Any, text: str) -> None:  # noqa: ANN401  a FailureKind
        if not self.ended.done():
            self.ended.set_result(Failure(kind, text))
        self.close()

    def _limit_rate(self, count: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._window_at >= PAUSE_SECONDS:
            self._window_at, self._window_bytes = now, 0
        self._window_bytes += count
        if self._window_bytes > MAX_BYTES_PER_SECOND and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


async def connect(peer: Peer, take: Callable[[bytes], None], owner: KeyOwner | None = None) -> Connection:
    """Open a connection and send the request. Raises OSError, TimeoutError and GetError.

    `owner`: to whom the token may be sent. A lookup takes 4 to 10 ms of the loop, and only for this machine.
    """
    return await asyncio.wait_for(_connect(peer, take, owner), CONNECT_SECONDS)


async def _connect(peer: Peer, take: Callable[[bytes], None], owner: KeyOwner | None) -> Connection:
    loop = asyncio.get_running_loop()
    plain = await _open(peer, owner, loop.time() + CONNECT_SECONDS)
    try:
        _, connection = await loop.create_connection(
            lambda: Connection(peer, take),
            sock=plain,
            ssl=peer.tls,
            server_hostname=peer.host if peer.tls else None,
        )
    except BaseException:  # cancelled as well
        plain.close()
        raise
    return connection


async def _open(peer: Peer, owner: KeyOwner | None, deadline: float) -> socket.socket:
    """Connect to the first address that accepts a connection, and whose listener is admitted.

    Another user may listen at ::1 while the neighbour's tunnel listens at 127.0.0.1, both `localhost`.
    """
    loop = asyncio.get_running_loop()
    failure: Exception = OSError("the name has no address")
    addresses = await _addresses(peer)
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        plain = socket.socket(family, socket.SOCK_STREAM)
        try:
            plain.setblocking(False)
            await asyncio.wait_for(_admit(plain, address, owner), (deadline - loop.time()) / left)
        except (OSError, asyncio.TimeoutError, GetError) as error:
            plain.close()
            failure = failure if isinstance(failure, GetError) else error
        except BaseException:  # cancelled
            plain.close()
            raise
        else:
            return plain
    raise failure


async def _addresses(peer: Peer) -> list[tuple[int, Any]]:
    if peer.scheme == "unix":
        return [(socket.AF_UNIX, peer.host)]
    found = await asyncio.get_running_loop().getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _admit(plain: socket.socket, address: Any, owner: KeyOwner | None) -> None:  # noqa: ANN401  of a family
    """Connect. With an owner, wait until the listener is known. Raises GetError and OSError."""
    await asyncio.get_running_loop().sock_connect(plain, address)
    pause = FIRST_PAUSE_SECONDS
    while owner is not None and not owner.admits(plain):
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


def explain(status: int) -> str:
    """Describe an answer without a stream, and what to do."""
    if status in (401, 403):
        return f"it answers {status}: check the token or the certificate"
    if 300 <= status < 400:
        return f"it answers {status}, a redirect, which is not followed: use the address that it names"
    if status == 422:
        return "it answers 422: its memwatchd is older and has no compact stream; upgrade it"
    if status == 503:
        return "it answers 503: all its streams are in use; raise max_streams there"
    return f"it answers {status}: check that the URL is a memwatchd"


def explain_error(error: BaseException) -> Failure:
    """Return the reason of a failed connection. What only a change of the settings can mend is refused."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return Failure("down", f"no connection within {CONNECT_SECONDS:g} s")
    if isinstance(error, GetError):  # another user listens: the neighbour itself is down
        return Failure("down", str(error))
    if certificate := getattr(error, "verify_message", ""):
        remedy = "use a name of its certificate in url" if "mismatch" in certificate else "check ca_file"
        return Failure("refused", f"TLS certificate verification failed: {certificate.rstrip('.')}; {remedy}")
    if getattr(error, "library", None) == "SSL":
        reason = str(getattr(error, "reason", None)).lower().replace("_", " ")
        fixed = next((text for part, text in TLS_REASONS.items() if part in reason), None)
        return Failure("refused", fixed) if fixed else Failure("down", f"TLS failed: {reason}")
    if isinstance(error, ConnectionRefusedError):
        return Failure("down", "connection refused: memwatchd does not run there")
    return Failure("down", describe_error(error))


class EventParser:
    """Collects the body of a stream and returns the data of its ticks. `count`: all events and comments so far."""

    def __init__(self) -> None:
        self._rest = b""
        self.count: int = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each tick that is complete now. Raises TickError if an event does not end."""
        *blocks, rest = (self._rest + data).split(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise TickError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        self._rest = rest
        self.count += len(blocks)
        return [found for block in blocks if (found := parse_tick(block)) is not None]


def parse_tick(block: bytes) -> bytes | None:
    """Return the data of a tick, None for a comment or another event."""
    event, data = b"", []
    for line in block.splitlines():
        name, _, value = line.partition(b":")
        if name == b"event":
            event = value.strip()
        elif name == b"data":
            data.append(value.strip())
    return b" ".join(data) if event == TICK and data else None


class Link:
    """Follows a peer until its last connection has ended. `take` raises TickError for invalid data."""

    def __init__(
        self, peer: Peer, take: Callable[[bytes], None], is_late: Callable[[], bool], owner: KeyOwner | None = None
    ) -> None:
        self.has_ticks = False
        self._peer, self._take, self._is_late = peer, take, is_late
        self._owner = owner
        self._attempts: set[asyncio.Task[Failure]] = set()
        self._opened_at = 0.0
        self._ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    async def follow(self) -> Failure:
        """Return the reason of the end."""
        self._open()
        try:
            return await self._ended
        finally:
            await asyncio.gather(*self._close_all_but(None), return_exceptions=True)

    def check(self) -> None:
        """Open a further connection if the tick is late. Called every second."""
        paused = asyncio.get_running_loop().time() - self._opened_at
        if (
            self.has_ticks
            and paused >= FURTHER_SECONDS
            and 0 < len(self._attempts) < MAX_CONNECTIONS
            and self._is_late()
        ):
            self._open()

    def _open(self) -> None:
        self._opened_at = asyncio.get_running_loop().time()
        attempt = asyncio.ensure_future(self._attempt())
        self._attempts.add(attempt)
        attempt.add_done_callback(self._on_end)

    async def _attempt(self) -> Failure:
        """Follow one connection to its end."""
        own = asyncio.current_task()
        connection: Connection | None = None
        try:
            connection = await connect(self._peer, lambda data: self._on_tick(data, own), self._owner)
            return await wait_for_end(connection)
        except (OSError, asyncio.TimeoutError, UnicodeError, GetError) as error:
            return explain_error(error)
        finally:
            if connection is not None:
                connection.close()

    def _on_tick(self, data: bytes, attempt: asyncio.Task[Failure] | None) -> None:
        self._take(data)
        self.has_ticks = True
        if len(self._attempts) > 1:
            self._close_all_but(attempt)

    def _close_all_but(self, kept: asyncio.Task[Failure] | None) -> set[asyncio.Task[Failure]]:
        closed = {attempt for attempt in self._attempts if attempt is not kept}
        self._attempts -= closed
        for attempt in closed:
            attempt.cancel()
        return closed

    def _on_end(self, attempt: asyncio.Task[Failure]) -> None:
        if attempt not in self._attempts:
            return
        self._attempts.remove(attempt)
        if self._ended.done():
            return
        if (error := attempt.exception()) is not None:
            self._ended.set_exception(error)
        elif not self._attempts or attempt.result().kind == "ended":
            self._ended.set_result(attempt.result())


async def wait_for_end(connection: Connection) -> Failure:
    """Wait for the end of a connection, or until nothing comes for too long."""
    loop = asyncio.get_running_loop()
    while True:
        done, _ = await asyncio.wait([connection.ended], timeout=5.0)
        if done:
            return connection.ended.result()
        if connection.is_overdue(loop.time()):
            return Failure("down", "no response")
