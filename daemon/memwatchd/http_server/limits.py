"""Limits for clients: open connections, requests, and the responses to requests beyond them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, Protocol

from msgspec import Struct

from memwatch.core.linux.process_table import descriptors_for_processes
from memwatch_web.asgi.access import response_headers
from memwatch_web.asgi.caller import LOOPBACK, name_address
from memwatch_web.asgi.problems import problem_response
from memwatchd.sockets import Peer

# Clients that share the limits: one network address, or one local user.

Fields = Sequence[tuple[bytes, bytes]]


def name_client(host: str | None, peer: Peer | None) -> str:
    """Return the client of a connection: the user of a Unix socket, or that of its address."""
    if peer is not None:
        return f"uid {peer.uid}"
    return LOOPBACK if host is None else name_address(host)


# Below this number no client is limited further: with `ulimit -n 64` all of them together have 8 connections.
MIN_CONNECTIONS = 8
# Part of all connections that one client may have. Loopback is shared by all local users, by a reverse proxy and by
# most scrapers, so it gets more. The other half is left to the network and to socket files.
SHARE, LOOPBACK_SHARE = 1 / 4, 1 / 2

StreamCount = Callable[["str | None"], int]


def no_streams(_client: str | None) -> int:
    return 0


class Connection(Protocol):
    """Connection as seen by `Connections`, which sets `group`: None while the connection is not counted."""

    client_name: str
    group: Group | None
    used_at: float
    """Time of the last response."""

    def is_idle(self) -> bool:
        """Return whether the connection is between two requests."""

    def stalled_seconds(self) -> float:
        """Return the time for which the client has not read its response."""

    def evict(self) -> None:
        """Close at once."""


class Group:
    """Connections of one client, or of all."""

    __slots__ = ("served", "waiting")

    def __init__(self) -> None:
        # Without a complete request, oldest first.
        self.waiting: dict[Connection, None] = {}
        # After a complete request, with `used_at` as of the last check, the least recently checked first.
        self.served: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.served)

    def victim(self, stall_seconds: float) -> Connection | None:
        """Return the connection to close, None if all are needed."""
        return self._idle() or next(iter(self.waiting), None) or self._stalled(stall_seconds)

    def _idle(self) -> Connection | None:
        """Return a connection not used since its last check. Those that were move to the end.

        Responses need not maintain an order, and each use is checked once: constant time on average.
        """
        best: Connection | None = None
        for one in list(self.served):
            is_idle = one.is_idle()
            if is_idle and self.served[one] == one.used_at:
                return one
            del self.served[one]
            self.served[one] = one.used_at
            if is_idle and (best is None or one.used_at < best.used_at):
                best = one
        return best

    def _stalled(self, seconds: float) -> Connection | None:
        longest = max(self.served, key=lambda one: one.stalled_seconds(), default=None)
        return longest if longest is not None and longest.stalled_seconds() >= seconds else None


class Connections:
    """All open connections. `streams` counts the open streams of a client, or with None those of all clients."""

    def __init__(self, limits: Limits, streams: StreamCount = no_streams) -> None:
        self._limits = limits
        self._streams = streams
        self._all = Group()
        self._clients: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, one: Connection) -> None:
        """Count a new connection. At a limit another one is closed, or the new one if all others are needed."""
        group = self._clients.get(one.client_name) or Group()
        limit = self._limit()
        crowded = None
        if len(group) >= self._limit_of(one.client_name, limit):
            crowded = group
        elif len(self._all) >= limit:
            crowded = self._all
        if crowded is not None and not self._make_room(crowded):
            one.evict()
            return
        one.group = self._clients.setdefault(one.client_name, group)
        self._all.waiting[one] = group.waiting[one] = None

    def wait(self, one: Connection) -> None:
        """Rank a connection with an incomplete request."""
        if one.group is not None:
            for group in (self._all, one.group):
                group.served.pop(one, None)
                group.waiting[one] = None

    def serve(self, one: Connection) -> None:
        """Rank a connection with a complete request."""
        if one.group is not None:
            for group in (self._all, one.group):
                group.waiting.pop(one, None)
                group.served[one] = one.used_at

    def release(self, one: Connection) -> None:
        """Stop counting a connection. Does nothing for one that is not counted."""
        if one.group is None:
            return
        for group in (self._all, one.group):
            group.waiting.pop(one, None)
            group.served.pop(one, None)
        if not one.group:
            self._clients.pop(one.client_name, None)
        one.group = None

    def _make_room(self, group: Group) -> bool:
        victim = group.victim(self._limits.stall_seconds)
        if victim is None:
            return False
        self.release(victim)
        victim.evict()
        return True

    def _limit(self) -> int:
        """Return the limit on all connections, which depends on the descriptors that this process may open."""
        limit = self._limits.connections + self._streams(None)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors == resource.RLIM_INFINITY:
            return limit
        reserved = self._limits.spare_descriptors + descriptors_for_processes(descriptors)
        return max(MIN_CONNECTIONS, min(limit, descriptors - reserved))

    def _limit_of(self, client: str, limit: int) -> int:
        share = LOOPBACK_SHARE if client == LOOPBACK else SHARE
        own = min(limit, self._limits.connections)
        return max(MIN_CONNECTIONS, int(own * share)) + self._streams(client)


class Limits(Struct, frozen=True):
    """Limits for a client: far more than browsers, scrapers and proxies need, and harmless to the daemon."""

    receive_seconds: float = 8.0
    """Time to receive a request, from the connection (a TLS handshake included) or, for a later request, from its
    first byte."""
    take_seconds: float = 30.0
    """Time to send a response that does not fit into the socket's buffer."""
    stall_seconds: float = 5.0
    """If no other connection can be closed, one whose client has read nothing for this time is."""
    url_bytes: int = 8 << 10
    head_bytes: int = 16 << 10
    fields: int = 100
    body_bytes: int = 64 << 10
    pipelined: int = 64
    """Requests sent before the responses to earlier ones. Each takes 2 kB, and 20 bytes on the wire."""
    connections: int = 1024
    """Open connections. At this number, or at that of the descriptors that are left, the one idle longest is
    closed. Streams come on top, they have a limit of their own."""
    spare_descriptors: int = 64
    """Descriptors reserved for the daemon: a flood must not keep collectors from opening files."""


class Rejection(NamedTuple):
    """Status and detail of a rejected request. Nothing more is read from its connection."""

    status: int
    sentence: str


def refusal_of_head(url: bytes, fields: Fields, head_bytes: int, limits: Limits) -> Rejection | None:
    """Return the rejection of a request head, complete or not, that is too large."""
    if len(url) > limits.url_bytes:
        return Rejection(414, f"the target has {len(url)} bytes; the maximum is {limits.url_bytes}.")
    if len(fields) > limits.fields:
        return Rejection(431, f"the header has {len(fields)} fields; the maximum is {limits.fields}.")
    if head_bytes > limits.head_bytes:
        return Rejection(431, f"the header has {head_bytes} bytes; the maximum is {limits.head_bytes}.")
    return None


def refusal_of_body(fields: Fields, limits: Limits) -> Rejection | None:
    """Return the rejection of a body that is too large or of unknown length."""
    for name, value in fields:
        if name == b"content-length" and int(value) > limits.body_bytes:
            return Rejection(413, f"the body has {int(value)} bytes; the maximum is {limits.body_bytes}.")
        if name == b"transfer-encoding":
            return Rejection(411, "a body of unknown length is not accepted: send Content-Length.")
    return None


def on_wire(refusal: Rejection, simulated: bool) -> bytes:
    """Render a rejection as a complete response, with the same headers as other responses."""
    response = problem_response(refusal.status, refusal.sentence, {"connection": "close"}, simulated)
    fields = [("date", formatdate(usegmt=True)), *response_headers(simulated), *response.headers.items()]
    head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{head}{lines}\r\n".encode("latin-1") + bytes(response.body)
