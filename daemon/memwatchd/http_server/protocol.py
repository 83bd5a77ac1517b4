"""HTTP protocol with limits on the time, size and number of requests and connections.

uvicorn has none of these limits: up to 0.54, connections that are silent, stop half-way or send slowly stay open
forever, and heads of 120 kB are accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from memwatch_web.asgi.caller import CLIENT, PEER
from memwatchd.http_server.limits import (
    Connections,
    Group,
    Limits,
    Rejection,
    name_client,
    on_wire,
    refusal_of_body,
    refusal_of_head,
)
from memwatchd.sockets import Peer, read_peer

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

BODY_FIELDS = frozenset((b"content-length", b"transfer-encoding"))
MALFORMED = (
    "this is not a well-formed HTTP/1.1 request. HTTP/2 is not supported, and TLS only if [web.tls] is set: "
    "use http://."
)


class RequestRejectedError(Exception):
    """Stops the parser."""


KeptFields = tuple[tuple[bytes, bytes], ...]
# Takes the fields of a request without a body, and the peer's credentials if known. Returns the complete response
# as sent on the wire, or None if the application must handle the request.
AtOnce = Callable[[KeptFields, "Peer | None"], "bytes | None"]


def http_protocol(
    limits: Limits, connections: Connections, at_once: Mapping[bytes, AtOnce], simulated: bool = False
) -> type[asyncio.Protocol]:
    """Return the protocol factory for uvicorn's `http`.

    `at_once`: fast paths by target, called for a GET before the application. Rejections of a `simulated` machine
    are marked as simulated.
    """
    return cast("type[asyncio.Protocol]", partial(BoundedProtocol, limits, connections, at_once, simulated))


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. A request that arrives in one piece, as almost all do, sets no timer."""

    # With these in `__dict__` it has more than 30 keys, and CPython does not share the keys of larger ones.
    __slots__ = (
        "_answered",
        "_answers",
        "_at_once",
        "_counted",
        "_deadline",
        "_earlier_bytes",
        "_idle",
        "_in_body",
        "_limits",
        "_peer",
        "_piece_bytes",
        "_refusal",
        "_simulated",
        "_stuck",
        "client_name",
        "group",
        "used_at",
    )

    def __init__(
        self,
        limits: Limits,
        counted: Connections,
        at_once: Mapping[bytes, AtOnce],
        simulated: bool,
        **server: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**server)
        self._limits = limits
        self._counted = counted
        self._at_once = at_once
        self._simulated = simulated
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._refusal: Rejection | None = None
        self._answered: RequestResponseCycle | None = None  # running; `cycle` is the latest, which may be queued
        self._peer: Peer | None = None
        self._in_body = False
        self._answers = 0  # on the fast path, to the current piece
        self.client_name = ""
        self.group: Group | None = None
        self.used_at = 0.0
        self._idle: asyncio.TimerHandle | None = None
        self._piece_bytes = 0
        self._earlier_bytes = 0  # of the current request, in the pieces before this one

    def accept(self, transport: asyncio.Transport) -> None:
        """Count a connection and start the receive timer. Before a TLS handshake; otherwise when it is made."""
        self.transport = transport
        self.connections.add(self)
        self._peer = read_peer(transport.get_extra_info("socket"))
        address = transport.get_extra_info("peername")
        self.client_name = name_client(address[0] if isinstance(address, tuple) else None, self._peer)
        self._counted.admit(self)
        if self.group is not None:
            self._expect()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self.client_name:
            self.accept(transport)
        super().connection_made(transport)
        # The first byte that the socket does not take pauses writing, which starts the timer of `take_seconds`.
        # (With 0 under TLS, asyncio of 3.11 pauses on every write and resumes on every second one.)
        transport.set_write_buffer_limits(1 if transport.get_extra_info("ssl_object") else 0, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._counted.release(self)
        self._cancel_stuck_timer()
        if self._idle is not None:
            self._idle.cancel()
        super().connection_lost(exc)
        # uvicorn 0.54 notifies only the latest cycle: streams with a request queued behind them stayed open.
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def is_idle(self) -> bool:
        return self._deadline is None and not self._is_answering() and not self.flow.write_paused

    def stalled_seconds(self) -> float:
        if self._stuck is None:
            return 0.0
        return self.loop.time() - (self._stuck.when() - self._limits.take_seconds)

    def evict(self) -> None:
        self._cancel_deadline()
        self.transport.abort()

    # The next four methods run for every request and are optimized for speed.

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return  # discard: closing with unread bytes would reset the connection and lose the response
        self._piece_bytes = len(data)
        self._answers = 0
        HttpToolsProtocol.data_received(self, data)
        cycle = self.cycle
        if self._deadline is not None or self._is_in_request():
            self._review()
        elif not self._answers and (cycle is None or cycle.response_complete):
            self._expect()
        if self._answers:
            self.used_at = self.loop.time()
            if self._idle is None:
                self._idle = self.loop.call_later(self.timeout_keep_alive, self._leave_if_idle)
            if self._is_at_rest():
                self._release_request()

    def on_headers_complete(self) -> None:
        self._in_body = True
        at_most = self._earlier_bytes + self._piece_bytes
        limits = self._limits
        if (
            at_most > limits.url_bytes
            or len(self.headers) > limits.fields
            or self.pipeline
            or not self.url.startswith(b"/")
        ):
            self._stop(self._refusal_of_odd(at_most))
        has_body = False
        for name, _ in self.headers:
            if name in BODY_FIELDS:
                has_body = True
                self._stop(refusal_of_body(self.headers, limits))
        answer_to = None if has_body else self._at_once.get(self.url)
        if answer_to is not None and self._answer_at_once(answer_to):
            return
        if self._peer is not None:
            cast("dict[str, Any]", self.scope)[PEER] = self._peer
        cast("dict[str, Any]", self.scope)[CLIENT] = self.client_name
        HttpToolsProtocol.on_headers_complete(self)

    def _answer_at_once(self, answer_to: AtOnce) -> bool:
        """Answer on the fast path, without uvicorn's objects. False if the request needs uvicorn: the last one of a
        connection, one queued behind another, or a client that does not read."""
        if self.expect_100_continue or self.flow.write_paused or self._is_answering():
            return False
        parser = self.parser
        if parser.get_method() != b"GET" or parser.get_http_version() != "1.1" or parser.should_upgrade():
            return False
        answer = answer_to(tuple(self.headers), self._peer) if parser.should_keep_alive() else None
        if answer is None:
            return False
        self._answers += 1
        self.scope = None if self.cycle is None else self.cycle.scope  # as between requests
        self.transport.write(answer)
        return True

    def on_message_complete(self) -> None:
        self._in_body = False
        self._earlier_bytes = 0
        if self.cycle is not None:  # otherwise all requests so far were answered on the fast path
            HttpToolsProtocol.on_message_complete(self)
            if self.cycle.response_complete:
                self._release_request()

    def on_response_complete(self) -> None:
        self.used_at = self.loop.time()
        HttpToolsProtocol.on_response_complete(self)
        cycle = self.cycle  # the latest, which may be queued
        if cycle.response_complete and self.scope is cycle.scope and not self._in_body:
            self._release_request()

    def _release_request(self) -> None:
        """Drop the head of an answered request. 2,000 idle connections with heads of 8 kB held 36 MiB."""
        self.scope = self.headers = self.cycle = self._answered = None  # type: ignore[assignment]
        self.url = b""

    def _leave_if_idle(self) -> None:
        """Close an idle connection. One timer serves all fast answers; uvicorn sets a new one after each answer."""
        self._idle = None
        left = self.used_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle = self.loop.call_later(left, self._leave_if_idle)
        elif self.timeout_keep_alive_task is None and self._deadline is None and not self._is_answering():
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        HttpToolsProtocol._start_asgi_task(self, cycle, app)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  uvicorn's message has no remedy
        """Reject a request that the parser, or an exception above, has stopped. Called by uvicorn."""
        self._refuse(self._refusal or Rejection(400, MALFORMED))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self._limits.take_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_stuck_timer()
        super().resume_writing()

    def shutdown(self) -> None:
        super().shutdown()
        if self._stuck is not None:  # otherwise uvicorn waits for it, then cancels the response with a traceback
            self.transport.abort()

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._cancel_deadline()
            self._counted.serve(self)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expect(self) -> None:
        """Start the receive timer unless it runs already: a slow sender gains no time."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.receive_seconds, self._give_up)
            self._counted.wait(self)

    def _review(self) -> None:
        """Check limits and timer after a partial request, or while the receive timer runs."""
        if self._is_in_request():
            self._earlier_bytes += self._piece_bytes
        elif self._is_answering() or self._answers:
            self._stop_expecting()
            return
        self._expect()
        if self._is_in_head() and self._refusal is None:
            refusal = refusal_of_head(self.url, self.headers, self._earlier_bytes, self._limits)
            if refusal is not None:
                self._refuse(refusal)

    def _refusal_of_odd(self, at_most: int) -> Rejection | None:
        if not self.url.startswith(b"/"):
            return Rejection(400, "the request target must be a path, such as /metrics.")
        if len(self.pipeline) >= self._limits.pipelined:
            return Rejection(429, f"{len(self.pipeline)} requests are already queued: read their responses first.")
        size = at_most
        if size > self._limits.head_bytes:  # may include a body or other requests
            size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        return refusal_of_head(self.url, self.headers, size, self._limits)

    def _stop(self, refusal: Rejection | None) -> None:
        """Stop the parser. Its exception makes uvicorn call `send_400_response`."""
        if refusal is not None:
            self._refusal = refusal
            raise RequestRejectedError

    def _give_up(self) -> None:
        if self._is_in_head() and self._refusal is None and not self._is_answering():
            seconds = self._limits.receive_seconds
            self.transport.write(
                on_wire(Rejection(408, f"the request was not complete after {seconds:g} s."), self._simulated)
            )
        self.transport.abort()

    def _is_at_rest(self) -> bool:
        """True without an unfinished request or response and without a timer other than the idle timer."""
        has_begun = self._is_in_request() or self._is_answering()
        has_clock = self._deadline is not None or self.timeout_keep_alive_task is not None
        return not has_begun and not has_clock and self._refusal is None

    def _is_in_request(self) -> bool:
        return self._in_body or self._is_in_head()

    def _is_in_head(self) -> bool:
        return self.scope is not (self.cycle.scope if self.cycle is not None else None)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, refusal: Rejection) -> None:
        """Stop parsing. The rejection is sent after the responses to earlier requests."""
        self._refusal = refusal
        self._expect()
        if self._is_answering():
            self.cycle.on_response = self._send_refusal
        else:
            self._send_refusal()

    def _send_refusal(self) -> None:
        if self._refusal is not None and not self.transport.is_closing():
            self.transport.write(on_wire(self._refusal, self._simulated))
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:  # TLS
                self.transport.close()

    def _cancel_stuck_timer(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
