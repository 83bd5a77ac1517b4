"""Limits for a client, and the responses to requests beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

from msgspec import Struct

from memwatch_web.asgi.access import response_headers
from memwatch_web.asgi.problems import problem_response

Fields = Sequence[tuple[bytes, bytes]]


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
