"""One connection to a followed machine: the response, its ticks and its end, with deadlines and limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from httptools import HttpParserError, HttpResponseParser

from memwatch.core.http import GetError
from memwatch.core.linux.key_owner import KeyOwner
from memwatch.core.linux.listener_owner import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS
from memwatch.monitor.neighbours.neighbour import Failure
from memwatch.monitor.neighbours.tick import TickError
from memwatchd.neighbours.event_parser import EventParser
from memwatchd.neighbours.peer import Peer

CONNECT_SECONDS = ANSWER_SECONDS = 5.0
# A stream sends a comment every 15 s at least. Parts of one do not count: a byte now and then is no answer.
QUIET_SECONDS = 20.0
MAX_HEAD_BYTES = 16 << 10
# 20 ticks a second at most have 20 KiB. More is read later: the sender waits.
MAX_BYTES_PER_SECOND = 64 << 10
PAUSE_SECONDS = 1.0
# A proxy reports that the machine behind it does not answer. memwatchd's own 503 is problem+json.
FROM_PROXY = frozenset({502, 504})
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
        is_proxy = status in FROM_PROXY or (status == 503 and self._type != PROBLEM)
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
    return Failure("down", str(getattr(error, "strerror", None) or error or type(error).__name__).lower())
