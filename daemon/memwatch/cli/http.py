"""Requests to a daemon: its address, the exchange, and the sentences of what fails."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from msgspec import Struct

from memwatch.core.http import DEFAULT_PORTS, DeadlineSocket, GetError, request
from memwatch.core.linux.daemon_connection import (
    PORT,
    build_headers,
    connect_daemon,
    default_url,
    is_on_this_machine,
)
from memwatch.core.options import InvalidValueError, parse_host, parse_socket
from memwatch.core.printable import describe_error

if TYPE_CHECKING:
    from http.client import HTTPResponse

EXIT_FAILURE = 1
# Of `memwatch check`, as Nagios defines it.
EXIT_UNKNOWN = 3


class CommandError(Exception):
    """Failure of a command: one sentence for the user, and the exit code."""

    def __init__(self, why: str, code: int = EXIT_FAILURE) -> None:
        super().__init__(why)
        self.code = code


class Address(Struct, frozen=True):
    """Address of a daemon. `scheme` is http, https or unix. For a socket file `host` is its path, `port` is unused.

    `prefix` is the path prefix of a reverse proxy.
    """

    scheme: str
    host: str
    port: int = 0
    prefix: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def is_here(self) -> bool:
        """True if the address is on this machine, so that reading the machine directly is an equivalent."""
        return is_on_this_machine(self.scheme, self.host)

    @property
    def start_command(self) -> str:
        """Command that starts a daemon at this address."""
        if self.scheme == "unix":
            return f"memwatchd --listen {self}"
        return "memwatchd" if self.port == PORT else f"memwatchd --listen 127.0.0.1:{self.port}"


DEFAULT = Address("http", "127.0.0.1", PORT)


def default_address() -> Address:
    """Return the daemon's socket file if this user can connect to it, else DEFAULT."""
    return parse_url(default_url())


def parse_url(url: str) -> Address:
    """Parse a daemon URL. Raise InvalidValueError if it is not one."""
    if url.startswith("unix:"):
        return Address("unix", parse_socket("unix:" + url.removeprefix("unix:").removeprefix("//")))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidValueError from None
    if parts.scheme not in DEFAULT_PORTS or host is None or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidValueError
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidValueError
    number = DEFAULT_PORTS[parts.scheme] if port is None else port
    return Address(parts.scheme, _parse_host(host), number, parts.path.rstrip("/"))


def _parse_host(host: str) -> str:
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise InvalidValueError from None
    return parse_host(host)


SECONDS = 10.0
MAX_ANSWER_BYTES = 64 << 20
JSON_TYPES = ("application/json", "application/problem+json")


class DaemonUnreachableError(CommandError):
    """No daemon is reachable at `address`, for `reason`."""

    def __init__(self, address: Address, error: OSError, seconds: float) -> None:
        reason = describe_reason(error, seconds)
        if isinstance(error, socket.gaierror):
            why = f"cannot resolve the host name {address.host} ({reason}); correct it"
        else:
            why = f"cannot reach memwatchd at {address} ({reason}); {remedy_for(address, error)}"
        super().__init__(f"{why}, or set another address with --url")
        self.address = address
        self.reason = reason


class RequestDeclinedError(CommandError):
    """The server rejected the request or sent an unusable response.

    `status`: its HTTP status, 0 without one; `detail`: the server's own sentence.
    """

    def __init__(self, why: str, status: int = 0, detail: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.detail = detail


class DaemonResponse(Struct, frozen=True):
    """Decoded body of a response. `unix`: the server's Date header, if any. `is_simulated`: demo or replay data."""

    json: Any
    unix: float | None
    is_simulated: bool = False


def ask(
    address: Address,
    path: str,
    method: str = "GET",
    seconds: float = SECONDS,
    body: Any = None,  # noqa: ANN401
) -> DaemonResponse:
    """Send a request, with a body as JSON, and return the response.

    Raises DaemonUnreachableError or RequestDeclinedError.
    """
    deadline = time.monotonic() + seconds
    headers = {"Accept": "application/json"} | build_headers(address.scheme, address.host, address.port)
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    from http.client import HTTPException  # with 20 modules, which settings of a daemon do not need

    try:
        with connect_daemon(address.scheme, address.host, address.port, seconds) as connected:
            limited = DeadlineSocket(connected, deadline, MAX_ANSWER_BYTES)
            response = request(limited, method, address.prefix + path, headers, data)
            answer = response.read(MAX_ANSWER_BYTES)
    except GetError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise DaemonUnreachableError(address, error, seconds) from None
    except HTTPException as error:
        raise RequestDeclinedError(
            f"the response of {address} is not valid HTTP ({type(error).__name__}); check the address"
        ) from None
    is_simulated = response.headers["Memwatch-Simulated"] == "true"
    return DaemonResponse(_read(address, response, answer), parse_date(response.headers["Date"]), is_simulated)


def describe_reason(error: OSError, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {seconds:g} s"
    if isinstance(error, PermissionError):
        return "permission denied: only the owner and group of the socket have access"
    return describe_error(error)


def remedy_for(address: Address, error: OSError) -> str:
    """Return advice for making a daemon reachable at `address`."""
    if address.is_here:
        return f"start one with: {address.start_command}"
    if isinstance(error, ConnectionRefusedError):
        where = f'listen = ["0.0.0.0:{address.port}"] under [web], and a bearer_token under [web.auth]'
        return f"start one there with a login ({where})"
    return f"check that the machine is up and its firewall allows port {address.port}"


def parse_date(header: str | None) -> float | None:
    try:
        return parsedate_to_datetime(header or "").timestamp()
    except (ValueError, TypeError, OverflowError):  # TypeError: Python 3.10 if it is not a date
        return None


def _read(address: Address, response: HTTPResponse, body: bytes) -> Any:  # noqa: ANN401
    kind = response.headers.get_content_type()
    try:
        found = json.loads(body, parse_constant=_refuse) if kind in JSON_TYPES else None
    except (ValueError, RecursionError):
        found = None
    if response.status != HTTPStatus.OK:
        raise RequestDeclinedError(refusal(address, response, found), response.status, detail_in(found))
    if found is None:
        raise RequestDeclinedError(
            f"{address} is not a memwatchd: it sent {kind}, not valid JSON; check the address"
        )
    return found


def _refuse(constant: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(constant)


def refusal(address: Address, response: HTTPResponse, found: object) -> str:
    """Return the error message: the `detail` of problem+json, or the HTTP status without one."""
    if detail := detail_in(found):
        return f"{address} rejected the request: {detail}"
    return f"{address} returned {response.status} {response.reason}; check that it is a memwatchd"


def detail_in(found: object) -> str:
    detail = found.get("detail") if isinstance(found, dict) else None
    return detail if isinstance(detail, str) else ""
