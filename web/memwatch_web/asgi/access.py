"""Outermost middleware: Host allow-list, authentication, response headers."""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from email.utils import formatdate
from enum import Enum, auto
from typing import TYPE_CHECKING

from msgspec import Struct

from memwatch.core.linux.files import Roots
from memwatch.core.linux.host_names import OwnNames
from memwatch.core.options import HOST_NAME
from memwatch_web.asgi.auth import TOKEN_HOLDER, FailedLogins, LoginCheck, LoginRefusal, has_right_token
from memwatch_web.asgi.caller import CALLER, HEAD_ONLY, PEER, USER, CallerLookup, has_forwarding_header
from memwatch_web.asgi.login import Login
from memwatch_web.asgi.problems import refusal_response
from memwatch_web.asgi.routes import OPEN_PATHS, QUESTIONS, is_for_programs
from memwatch_web.asgi.threads import QueueFullError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class WebOptions(Struct, frozen=True):
    """Options that may change while the server runs.

    `hosts`: additional host names of this machine, and domains such as ".example.com". `certificate_names`: names
    in the TLS certificate, with wildcards. `process_metrics`: number of processes in /metrics.
    `owner_metrics`: number of owners of each kind there.
    """

    hosts: tuple[str, ...] = ()
    certificate_names: tuple[str, ...] = ()
    process_metrics: int = 0
    owner_metrics: int = 0
    login: Login = Login()


# Host allow-list against DNS rebinding: names of this machine, configured names and domains, numeric addresses.

MAX_REMEMBERED = 1000
# Names may have any letter but blanks and control characters, such as a tab: parsers treat these differently.
HOST_AND_PORT = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f:\[\]]*)(?::[0-9]*)?")
MAX_NAME_LENGTH = 253 + len(":65535")

OwnNamesSource = Callable[[], frozenset[str]]


class HostCheck:
    """Check of Host headers, with a cache that ends when a name or an option changes.

    Names of this machine are read for other headers than addresses and configured names only, as most scrapes have.
    """

    def __init__(self, own_names: OwnNamesSource) -> None:
        self._own_names = own_names
        self._own: frozenset[str] = frozenset()
        self._is_old = True
        self._configured: object = None
        self._known_by_options: dict[bytes, bool] = {}
        self._known_by_own: dict[bytes, bool] = {}

    def renew(self) -> None:
        """Read the names of this machine, which may change, before the next header that depends on them."""
        self._is_old = True

    def is_known(self, header: bytes, options: WebOptions) -> bool:
        configured = options.hosts, options.certificate_names
        if configured != self._configured:
            self._configured = configured
            self._known_by_options.clear()
        names = ("localhost", *options.certificate_names, *map(str.lower, options.hosts))
        return _remember(self._known_by_options, header, names) or self._is_own(header)

    def _is_own(self, header: bytes) -> bool:
        if self._is_old:
            own = self._own_names()
            if own != self._own:
                self._own = own
                self._known_by_own.clear()
            self._is_old = False
        return _remember(self._known_by_own, header, self._own)


def _remember(known: dict[bytes, bool], header: bytes, names: Collection[str]) -> bool:
    """Return whether a header is allowed by these names, from `known` if it was asked for before."""
    found = known.get(header)
    if found is None:
        found = is_allowed(header.decode("latin-1"), set(names))
        if len(known) < MAX_REMEMBERED and len(header) <= MAX_NAME_LENGTH:
            known[header] = found
    return found


def is_valid(header: bytes) -> bool:
    """Check that a Host header is a name or an address, with or without a port."""
    return HOST_AND_PORT.fullmatch(header) is not None


def parse_host(header: str) -> str:
    """Return the host of a Host header in lower case, without port and without the brackets of IPv6."""
    if "@" in header:  # userinfo before the host: the colon does not separate a port
        return header.lower()
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")


def is_allowed(header: str, hosts: Collection[str]) -> bool:
    """Check that a Host header is one of `hosts`, such a name with .local, in a domain of them, or numeric.

    ".example.com" in `hosts` is a domain with all names below it. "*.example.com", as in a certificate, stands for
    one label.
    """
    host = parse_host(header)
    if host.startswith("."):
        return False
    return is_below(host, hosts) or not {host, host.removesuffix(".local")}.isdisjoint(hosts) or is_numeric(host)


def is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_below(host: str, hosts: Collection[str]) -> bool:
    """Check whether a name is in one of the domains. Other text that ends like a domain is no name."""
    if not HOST_NAME.fullmatch(host):
        return False
    labels = host.split(".")
    parents = [".".join(labels[start:]) for start in range(len(labels))]
    return any(f".{parent}" in hosts for parent in parents) or f"*.{'.'.join(labels[1:])}" in hosts


log = logging.getLogger(__name__)

# One policy for every page: own origin only, nothing inline, no framing.
SECURITY_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "manifest-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    ("x-content-type-options", "nosniff"),
    # Not no-referrer: forms without a script would be sent with the Origin "null", like those of other sites.
    ("referrer-policy", "same-origin"),
)
SIMULATED_HEADER = ("memwatch-simulated", "true")

SAFE_METHODS = frozenset({"GET", "HEAD"})
NOT_AN_OPERATOR = (
    "changes need root, the user of memwatchd, or a login: run the command as root, use the socket file "
    "unix:/run/memwatchd/memwatchd.sock (as a member of its group), or set a login under [web.auth]."
)
# Headers of browsers. Requests with them get no exception from the Host check.
BROWSER_HEADERS = frozenset(
    {b"origin", b"referer", b"cookie", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"}
)
TOO_MANY = frozenset({429, 503})


class Admission(Enum):
    """Decision about a request that changes nothing, before slow checks."""

    OPEN = auto()
    """Allowed without credentials."""
    TOKEN = auto()
    """Allowed by its token."""
    LOGIN = auto()
    """Allowed if its credentials are right."""
    UNKNOWN_NAME = auto()
    """Host is not a name of this machine: allowed for an authenticated program only."""
    NO_VALID_HOST = auto()
    """Refused: no Host header, several, or one that is not a host and a port."""


ADMITTED = frozenset({Admission.OPEN, Admission.TOKEN})


class AccessControl:
    """ASGI middleware that checks the Host header, the login and the origin of changes.

    An unknown Host is refused, so that a foreign page cannot read this machine by DNS rebinding. Numeric addresses
    are always allowed: rebinding needs a name. A program that sends a right token or password, or has a client
    certificate, may use any name. A login, if set, is required except for unix sockets and health checks.
    `date_headers` are the server's default headers; the first request of each second updates their Date in place.
    Refusals on a `simulated` machine are marked as simulated.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: Callable[[], WebOptions],
        date_headers: MutableSequence[tuple[bytes, bytes]],
        simulated: bool = False,
        own_names: OwnNamesSource | None = None,
        callers: CallerLookup | None = None,
        failures: FailedLogins | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._options = options
        self._simulated = simulated
        self._callers = callers or CallerLookup()
        self._login_check = LoginCheck(failures or FailedLogins(), self._callers)
        self._host_check = HostCheck(own_names or OwnNames(Roots()))
        self._date_headers = date_headers
        self._wall = wall
        self._second = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = await self._refusal_of(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # The server drops the body by its own copy of the scope. Only a stream must know not to start.
            scope = {**scope, "method": "GET", HEAD_ONLY: True}
        try:
            await self._app(scope, receive, send)
        except Exception:
            log.debug("traceback of the failed request", exc_info=True)

    @property
    def options(self) -> WebOptions:
        """Return the options that all decisions depend on. The same object means the same decisions."""
        return self._options()

    def admit(self, fields: Iterable[tuple[bytes, bytes]], path: str, is_peer: bool) -> Admission:
        """Decide about a request by its Host and its login, and renew the headers of the response.

        Every way to an answer starts here: ASGI and the fast path of /metrics.
        """
        self._renew_date()
        hosts = [value for name, value in fields if name == b"host"]
        if len(hosts) != 1 or not is_valid(hosts[0]):
            return Admission.NO_VALID_HOST
        options = self._options()
        if not self._host_check.is_known(hosts[0], options):
            return Admission.UNKNOWN_NAME
        if not options.login.is_required or is_peer or path in OPEN_PATHS:
            return Admission.OPEN
        return Admission.TOKEN if has_right_token(fields, options.login) else Admission.LOGIN

    def _renew_date(self) -> None:
        """Update the Date header of all responses and the host name of this machine, which may change."""
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._host_check.renew()
            self._date_headers[0] = (b"date", formatdate(second, usegmt=True).encode())

    async def _refusal_of(self, scope: Scope) -> ASGIApp | None:
        """Return a refusal of a request, or None if it is allowed."""
        admission = self.admit(scope["headers"], scope["path"], PEER in scope)
        if admission is Admission.NO_VALID_HOST:
            return self._invalid_host(hosts_of(scope))
        refusal = await self._refusal_by_login(scope, admission)
        if refusal is None and scope["method"] not in SAFE_METHODS:
            refusal = await self._refusal_of_change(scope, hosts_of(scope)[0])
        return refusal

    async def _refusal_by_login(self, scope: Scope, admission: Admission) -> ASGIApp | None:
        """Return a refusal, or None if no login is required or the client is authenticated."""
        if admission is Admission.TOKEN:
            scope[USER] = TOKEN_HOLDER
        if admission in ADMITTED:
            return None
        if admission is Admission.UNKNOWN_NAME:
            return await self._refusal_of_name(scope, hosts_of(scope)[0])
        found = await self._login_check.check(scope, self._options().login)
        if isinstance(found, LoginRefusal):
            return self._refusal_of_login(found)
        scope[USER] = found
        return None

    async def _refusal_of_name(self, scope: Scope, host: bytes) -> ASGIApp | None:
        """Return a refusal of a name that this machine does not have, or None if a program is authenticated.

        There is no challenge: browsers do not ask for a password under such a name. A proxy may add credentials to
        requests of browsers, and browsers add client certificates: neither is accepted.
        """
        login, names = self._options().login, [name for name, _ in scope["headers"]]
        if PEER in scope or not BROWSER_HEADERS.isdisjoint(names) or has_forwarding_header(names):
            return self._unknown_name(host)
        if not login.is_required:
            return None if login.by_certificate else self._unknown_name(host)
        if b"authorization" not in names:
            return self._unknown_name(host)
        found = await self._login_check.check(scope, login)
        if isinstance(found, LoginRefusal):
            is_limit = found.status in TOO_MANY
            return self._refusal_of_login(found) if is_limit else self._unknown_name(host)
        scope[USER] = found
        return None

    async def _refusal_of_change(self, scope: Scope, host: bytes) -> ASGIApp | None:
        """Return a refusal of a changing request, or None if it is allowed."""
        options = self._options()
        if is_foreign(dict(scope["headers"]), host, options.hosts):
            return self._problem(403, "cross-site request refused: pages of other sites cannot make changes here.")
        if scope["path"] in QUESTIONS:
            return None
        try:
            caller = scope[CALLER] = await self._callers.identify(scope, options.login.by_certificate)
        except QueueFullError:
            return self._problem(503, "too many requests for changes: retry in 5 s.", {"retry-after": "5"})
        is_program = caller.uid is not None and PEER not in scope and is_for_programs(scope["path"])
        return None if caller.is_operator or is_program else self._problem(403, NOT_AN_OPERATOR)

    def _invalid_host(self, hosts: Sequence[bytes]) -> ASGIApp:
        if len(hosts) != 1:
            return self._problem(400, f"a request needs exactly one Host header; this one has {len(hosts)}.")
        host = hosts[0][:80].decode("latin-1")
        return self._problem(400, f"Host {host!r} is not a host and a port. Use for example localhost:6360.")

    def _unknown_name(self, host: bytes) -> ASGIApp:
        name = parse_host(host.decode("latin-1"))[:80]
        remedy = "add it to hosts under [web]"
        if self._options().login.is_required:
            remedy += ", or send a right token or password, without headers of a browser or proxy"
        return self._problem(400, f"Host {name!r} is not a name of this machine. To allow it, {remedy}.")

    def _refusal_of_login(self, found: LoginRefusal) -> ASGIApp:
        return self._problem(found.status, found.detail, found.headers, found.sentence, found.logins)

    def _problem(
        self,
        status: int,
        detail: str,
        headers: dict[str, str] | None = None,
        sentence: str = "",
        logins: Sequence[str] = (),
    ) -> ASGIApp:
        """Return a refusal. `sentence` and `logins`: for a page, see `refusal_response`."""

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            words = sentence or detail
            answer = refusal_response(scope, status, detail, headers or {}, self._simulated, words, logins)
            await answer(scope, receive, send)

        return refuse


def hosts_of(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"host"]


def response_headers(simulated: bool) -> tuple[tuple[str, str], ...]:
    """Return the headers of every response, except the Date."""
    return (SIMULATED_HEADER, *SECURITY_HEADERS) if simulated else SECURITY_HEADERS


def is_foreign(fields: Mapping[bytes, bytes], host: bytes, hosts: Sequence[str]) -> bool:
    """Check whether the headers of a browser name another site as the origin. Programs send neither header.

    The own site is the Host of the request, or a listed name (behind a proxy). Other numeric addresses do not count
    as own: every site has one. Browsers send Sec-Fetch-Site to https and localhost only.
    """
    if fields.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        return True
    origin = fields.get(b"origin")
    if origin is None:
        return False
    site = origin.partition(b"://")[2].lower()
    return site != host.lower() and parse_host(site.decode("latin-1")) not in {name.lower() for name in hosts}
