"""The outermost door: which Host names are answered, and headers every answer carries."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable, MutableSequence, Sequence
from email.utils import formatdate

from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch_web.problems import problem_response
from memwatch_web.stream import HEAD_ONLY

log = logging.getLogger(__name__)

# One policy for every page: nothing from elsewhere, nothing inline, no framing.
SECURITY_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
)

MOST_REMEMBERED = 1000
SAFE_METHODS = frozenset({"GET", "HEAD"})
# What a reverse proxy on this machine adds: then it is somebody else who asks.
FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
LONGEST_NAME = 253 + len(":65535")


class Gate:
    """Refuses requests whose Host nobody gave this machine, so that a foreign page cannot read it by DNS rebinding.

    A numeric address is always right: rebinding needs a name. `date_header` is the server's list of headers
    sent with every answer; its Date is renewed in place by the first request of each second.
    """

    def __init__(
        self, app: ASGIApp, hosts: Callable[[], Sequence[str]], date_headers: MutableSequence[tuple[bytes, bytes]]
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._known: dict[bytes, bool] = {}
        self._known_for: Sequence[str] = ()
        self._date_headers = date_headers
        self._second = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._renew_date()
        named = [value for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1 or not self._is_known(named[0]):
            await self._refuse(named)(scope, receive, send)
            return
        if scope["method"] not in SAFE_METHODS:
            refusal = self._refusal_of_change(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        if scope["method"] == "HEAD":
            # The server leaves the body out by the scope it has kept; only a stream must know not to begin.
            scope = {**scope, "method": "GET", HEAD_ONLY: True}
        try:
            await self._app(scope, receive, send)
        except Exception:
            log.debug("the defect in full", exc_info=True)

    def _renew_date(self) -> None:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date_headers[0] = (b"date", formatdate(second, usegmt=True).encode())

    def _is_known(self, header: bytes) -> bool:
        hosts = self._hosts()
        if hosts is not self._known_for:
            self._known_for = hosts
            self._known.clear()
        known = self._known.get(header)
        if known is None:
            own = {"localhost", socket.gethostname().lower()}
            known = is_allowed(header.decode("latin-1"), own.union(name.lower() for name in hosts))
            if len(self._known) < MOST_REMEMBERED and len(header) <= LONGEST_NAME:
                self._known[header] = known
        return known

    def _refusal_of_change(self, scope: Scope) -> ASGIApp | None:
        """Why a request that changes something is refused; None where it is not. There is no login yet."""
        if self._is_foreign(scope["headers"]):
            return problem_response(403, "a page of another site may not change anything here.")
        if FORWARDED.intersection(dict(scope["headers"])) or not is_from_here(scope.get("client")):
            return problem_response(
                403, "changes are accepted from this machine only: ask at its 127.0.0.1 or its unix socket."
            )
        return None

    def _is_foreign(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a browser says that another site's page asks. Programs send neither header."""
        fields = dict(headers)
        if fields.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return True
        origin = fields.get(b"origin")
        return origin is not None and not self._is_known(origin.partition(b"://")[2])

    @staticmethod
    def _refuse(named: list[bytes]) -> ASGIApp:
        if len(named) != 1:
            return problem_response(400, f"a request names one Host; this one names {len(named)}.")
        name = host_of(named[0].decode("latin-1"))[:80]
        return problem_response(
            400, f"Host {name!r} is not a name of this machine. To allow it, add it to hosts under [web]."
        )


def is_from_here(client: Sequence[object] | None) -> bool:
    """Whether a request comes from this machine: over a unix socket, or from a loopback address."""
    if not client or not client[0]:
        return True
    try:
        address = ipaddress.ip_address(str(client[0]))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def host_of(header: str) -> str:
    """The Host header without its port, lower case; an IPv6 address without its brackets."""
    if "@" in header:  # a user's name before a host: the colon is not a port's
        return header.lower()
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")


def is_allowed(header: str, hosts: set[str]) -> bool:
    """Whether a Host header names this machine: by one of `hosts`, by name.local, or by any numeric address."""
    host = host_of(header)
    if host in hosts or host.removesuffix(".local") in hosts:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
