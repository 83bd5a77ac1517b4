"""HTTP POST to a receiver: its address and secrets, the proxy on the way, and one attempt within one deadline."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import re
import socket
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from memwatch.build_info import __version__
from memwatch.core.http import (
    DEFAULT_PORTS,
    GATEWAY_STATUSES,
    Admit,
    DeadlineSocket,
    GetError,
    Resolve,
    connect,
    is_loopback,
    request,
)
from memwatch.core.redaction import redact_text

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Parsed URL to post to. Path and query often contain a token, so only `origin` is displayed or logged."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self._bracketed}:{self.port}"

    @property
    def host_header(self) -> str:
        usual = self.port == DEFAULT_PORTS[self.scheme]
        return self._bracketed if usual else f"{self._bracketed}:{self.port}"

    @property
    def has_secret(self) -> bool:
        """Return True if path or query contain what would be hidden in a command line."""
        url = f"{self.origin}{self.path}"
        return redact_text(url) != url

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return self.origin


def parse_endpoint(url: str) -> Endpoint:
    """Parse a URL. Raises ValueError with a reason that contains no part of the URL."""
    if not re.fullmatch(r"[!-~]{1,2000}", url):
        raise ValueError("is not made of 1 to 2000 printable ASCII characters")
    parts = urlsplit(url)
    try:
        given = parts.port
    except ValueError:  # its message contains the text
        raise ValueError("has a port that is not a number from 1 to 65535") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError("does not begin with http:// or https:// and a host name")
    if "@" in parts.netloc:
        raise ValueError("contains a user name or password, which would appear in logs")
    port = given if given is not None else DEFAULT_PORTS[parts.scheme]
    if port == 0:
        raise ValueError("has port 0")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(parts.scheme, parts.hostname, port, path)


@dataclass(frozen=True, slots=True)
class Password:
    """A password or token for authentication at a receiver."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"

    def authorization(self, user: str | None) -> str:
        """Return the Authorization header: Basic with a user (RFC 7617, in UTF-8), else Bearer (RFC 6750)."""
        if user is None:
            return f"Bearer {self.text}"
        return "Basic " + base64.b64encode(f"{user}:{self.text}".encode()).decode()


def parse_password(text: str) -> Password:
    """Parse the content of a file or an environment variable. Raises ValueError, which does not contain it."""
    text = text.rstrip("\r\n")
    if not 1 <= len(text) <= 2048 or not text.isascii() or not text.isprintable():
        raise ValueError("is not a password or a token of 1 to 2048 printable ASCII characters")
    return Password(text)


REFUSED_LOGIN = 407
# tinyproxy 1.11 answers 407 without a login and 401 to a wrong one.
REFUSALS = frozenset({401, REFUSED_LOGIN})


class ProxyError(OSError):
    """The proxy refused to connect to the receiver. The message names no secret."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Address of a proxy and its login. Only the address is displayed or logged."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.authorization is None else {"Proxy-Authorization": self.authorization}


def parse_proxy(url: str) -> Proxy:
    """Parse http://[USER:PASSWORD@]HOST:PORT. Raises ValueError with a reason that contains no part of the URL."""
    if not re.fullmatch(r"[!-~]{1,2000}", url):
        raise ValueError("is not made of 1 to 2000 printable ASCII characters")
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "http" or not host or not port:
        raise ValueError("is not http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT with %40 for an @")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("has a path, which proxies do not have")
    return Proxy(host, port, _authorization(parts.username, parts.password))


def _authorization(user: str | None, password: str | None) -> str | None:
    if user is None:
        return None
    login = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(login.encode()).decode()


def is_on_this_machine(endpoint: Endpoint) -> bool:
    """Return True for localhost and loopback addresses, to which no proxy leads."""
    return endpoint.host == "localhost" or endpoint.host.endswith(".localhost") or is_loopback(endpoint.host)


def open_tunnel(connected: DeadlineSocket, proxy: Proxy, endpoint: Endpoint) -> None:
    """Let the proxy connect to the receiver (RFC 9110, 9.3.6). Raises ProxyError if it refuses."""
    target = endpoint.origin.partition("://")[2]
    fixed = {"Host": target, "User-Agent": f"memwatchd/{__version__}"}
    from http.client import HTTPException  # loaded by `Poster.prepare`

    try:
        status = request(connected, "CONNECT", target, fixed | proxy.headers).status
    except HTTPException:
        raise ProxyError("the response is not HTTP") from None
    if status in REFUSALS:
        raise ProxyError(login_refusal(proxy, status))
    if not 200 <= status < 300:
        raise ProxyError(f"answered {status} to CONNECT {target}; it may not allow or reach this receiver")


def login_refusal(proxy: Proxy, status: int = REFUSED_LOGIN) -> str:
    if proxy.authorization is None:
        return f"answered {status}, it needs a login; write USER:PASSWORD@ before its host, in a separate file"
    return f"answered {status}, it refuses the user or password; correct them in proxy"


# Most bytes read of a response, headers and body. Only the status line and headers are used; the body is read so
# that the connection is not reset while the receiver still sends.
MAX_READ_BYTES = 64 * 1024
MAX_RETRY_AFTER_SECONDS = 86_400.0

# Cloud metadata services outside the link-local ranges. They give the machine's credentials or settings to any
# process: AWS and Google over IPv6, Alibaba, Azure (WireServer), Oracle's older one, Scaleway over IPv6.
METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:42::42",
    )
)
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenAddressError(OSError):
    """The receiver's address is not allowed."""


class WallClock(Protocol):
    def __call__(self) -> float: ...


class PostResult(Struct, frozen=True):
    """Result of an attempt: an HTTP status, or a `failure` in words.

    `accepted`: a service without HTTP statuses reported success. `may_have_arrived`: the receiver may have
    processed the request without confirming it. `unix`: the time of its Date header, if any.
    """

    status: int | None
    failure: str = ""
    may_have_arrived: bool = False
    retry_after_seconds: float = 0.0
    unix: float | None = None
    accepted: bool = False

    @property
    def success(self) -> bool:
        return self.accepted or (self.status is not None and 200 <= self.status < 300)


class Poster:
    """HTTP client for one endpoint. `abort`, called from another thread, ends the current attempt.

    `admit` is called with each connection before anything is sent on it, for requests with a secret.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_seconds: float,
        allow_link_local: bool,
        tls: ssl.SSLContext | None,
        wall: WallClock,
        resolve: Resolve = socket.getaddrinfo,
        proxy: Proxy | None = None,
        admit: Admit | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._proxy = None if is_on_this_machine(endpoint) else proxy
        self._hop: Endpoint | Proxy = self._proxy or endpoint
        self._timeout = timeout_seconds
        self._allow_link_local = allow_link_local
        self._tls = tls
        self._wall = wall
        self._resolve = resolve
        self._admit = admit
        self._socket: socket.socket | None = None
        self._sent = False
        self._in_tunnel = False
        self._aborted = False

    def prepare(self) -> None:
        """Load the modules of HTTP, and resolve the name once: the first lookup loads the resolver's libraries."""
        import http.client  # noqa: F401  0.6 MiB with those of mail headers, which a daemon without receivers saves

        with contextlib.suppress(OSError, UnicodeError):
            self._resolve(self._hop.host, self._hop.port, type=socket.SOCK_STREAM)

    def post(self, headers: dict[str, str], body: bytes) -> PostResult:
        self._sent = self._in_tunnel = False
        deadline = time.monotonic() + self._timeout
        try:
            with self._connect(deadline) as connected:
                return self._exchange(connected, deadline, headers, body)
        except Exception as error:  # noqa: BLE001  any error is a failed attempt, and the next one must follow
            return PostResult(None, self._describe(error), self._sent)
        finally:
            self._socket = None

    def abort(self) -> None:
        self._aborted = True
        busy = self._socket
        if busy is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown: it drops the TLS state while the other thread uses it.
                socket.socket.shutdown(busy, socket.SHUT_RDWR)

    def _connect(self, deadline: float) -> socket.socket:
        """Connect to the first address of the receiver or proxy that accepts a connection."""
        self._refuse_forbidden_literal()

        def tunnel(plain: socket.socket) -> None:
            if self._proxy is not None and self._tls is not None:
                open_tunnel(DeadlineSocket(plain, deadline, MAX_READ_BYTES), self._proxy, self._endpoint)
                self._in_tunnel = True

        self._socket = connected = connect(
            self._hop.host,
            self._hop.port,
            deadline,
            self._resolve,
            self._admit,
            self._begin,
            tunnel,
            self._tls,
            self._endpoint.host,
        )
        return connected

    def _begin(self, plain: socket.socket, text: str) -> None:
        """Keep the socket for `abort`, and refuse a forbidden address: the same one is checked and connected to."""
        self._socket = plain
        if self._aborted:
            raise ForbiddenAddressError("memwatchd is stopping")
        if not self._allow_link_local and is_forbidden(text):
            where = f"{text} is" if text == self._hop.host else f"{self._hop.host} is at {text},"
            raise ForbiddenAddressError(
                f"{where} a link-local or metadata address; allow_link_local = true permits it"
            )

    def _refuse_forbidden_literal(self) -> None:
        """Refuse a numeric address that the proxy would connect to. Names are resolved by the proxy."""
        address = parse_address(self._endpoint.host)
        if self._proxy is not None and address is not None and not self._allow_link_local and is_forbidden(address):
            raise ForbiddenAddressError(
                f"{self._endpoint.host} is a link-local or metadata address; allow_link_local = true permits it"
            )

    def _exchange(
        self, connected: socket.socket, deadline: float, headers: dict[str, str], body: bytes
    ) -> PostResult:
        fixed = {
            "Host": self._endpoint.host_header,
            "User-Agent": f"memwatchd/{__version__}",
            "Connection": "close",
        }
        forwarded = self._proxy is not None and self._tls is None
        if forwarded and self._proxy is not None:
            fixed |= self._proxy.headers
        path = f"http://{self._endpoint.host_header}{self._endpoint.path}" if forwarded else self._endpoint.path
        self._sent = True
        limited = DeadlineSocket(connected, deadline, MAX_READ_BYTES)
        response = request(limited, "POST", path, fixed | headers, body)
        if forwarded and self._proxy is not None and response.status == REFUSED_LOGIN:
            return PostResult(None, f"the proxy {self._proxy} {login_refusal(self._proxy)}")
        retry_after = retry_after_seconds(response.getheader("Retry-After"), self._wall())
        from http.client import HTTPException

        with contextlib.suppress(OSError, HTTPException, ValueError):
            response.read(MAX_READ_BYTES)
        lost, date = response.status in GATEWAY_STATUSES, parse_http_date(response.getheader("Date"))
        through = f" through the proxy {self._proxy}" if self._proxy is not None else ""
        return PostResult(response.status, words_for_status(response.status) + through, lost, retry_after, date)

    def _describe(self, error: Exception) -> str:
        is_at_proxy = (
            self._proxy is not None and not self._in_tunnel and not isinstance(error, ForbiddenAddressError)
        )
        return f"the proxy {self._proxy}: {self._words_for(error)}" if is_at_proxy else self._words_for(error)

    def _words_for(self, error: Exception) -> str:
        from http.client import HTTPException

        if isinstance(error, ForbiddenAddressError | GetError | ProxyError):
            return str(error)
        if isinstance(error, TimeoutError):
            return f"no {'response' if self._sent else 'connection'} within {self._timeout:g} s"
        if isinstance(error, socket.gaierror | UnicodeError):
            reason = getattr(error, "strerror", None) or "too long"
            return f"the name {self._hop.host} does not resolve ({reason})"
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return "closed the connection without a response"
        if isinstance(error, HTTPException):
            return "the response is not HTTP"
        certificate = getattr(error, "verify_message", "")
        if certificate:
            return f"TLS certificate verification failed: {certificate}"
        if getattr(error, "library", None) == "SSL":
            return f"TLS failed: {getattr(error, 'reason', None)}"
        return str(getattr(error, "strerror", None) or type(error).__name__).lower()


def is_forbidden(text: str) -> bool:
    """Return True for a link-local address or a known metadata service, also for IPv4 embedded in IPv6."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        address = ipaddress.IPv6Address(int(address))  # without the zone
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.is_link_local or address in METADATA or (inner is not None and is_forbidden(str(inner)))
    return address.is_link_local or address in METADATA


def parse_address(host: str) -> str | None:
    """Return the address of a host in any notation of inet_aton(3), such as 0xa9fea9fe. None for a name."""
    plain = host.removesuffix(".")
    try:
        return str(ipaddress.ip_address(plain))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(plain))
    except OSError:
        return None


def words_for_status(status: int) -> str:
    if 300 <= status < 400:
        return f"answered {status}, a redirect, which is not followed"
    return f"answered {status}"


def retry_after_seconds(value: str | None, wall: float) -> float:
    """Parse a Retry-After header (seconds or an HTTP date). Returns 0 seconds to a day, 0 if it is invalid."""
    if value is None:
        return 0.0
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    date = parse_http_date(text)
    return 0.0 if date is None else min(max(date - wall, 0.0), MAX_RETRY_AFTER_SECONDS)


def parse_http_date(date: str | None) -> float | None:
    """Parse an HTTP date. None if it is missing or invalid."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def context_for(endpoint: Endpoint) -> ssl.SSLContext | None:
    """Return a TLS context that verifies certificates and host names, None for http.

    `ssl` is imported here because it takes 4.5 MiB, which only https receivers need.
    """
    if endpoint.scheme != "https":
        return None
    import ssl

    return ssl.create_default_context()
