"""HTTP proxies between this machine and receivers: CONNECT for https, forwarding for http, Basic authentication."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from memwatch.build_info import __version__
from memwatch.core.http import DeadlineSocket, request
from memwatch.monitor.notify.webhook_payload import Endpoint

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
    if endpoint.host == "localhost" or endpoint.host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(endpoint.host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def open_tunnel(connected: DeadlineSocket, proxy: Proxy, endpoint: Endpoint) -> None:
    """Let the proxy connect to the receiver (RFC 9110, 9.3.6). Raises ProxyError if it refuses."""
    target = endpoint.origin.partition("://")[2]
    fixed = {"Host": target, "User-Agent": f"memwatchd/{__version__}"}
    try:
        status = request(connected, "CONNECT", target, fixed | proxy.headers).status
    except http.client.HTTPException:
        raise ProxyError("the response is not HTTP") from None
    if status in REFUSALS:
        raise ProxyError(login_refusal(proxy, status))
    if not 200 <= status < 300:
        raise ProxyError(f"answered {status} to CONNECT {target}; it may not allow or reach this receiver")


def login_refusal(proxy: Proxy, status: int = REFUSED_LOGIN) -> str:
    if proxy.authorization is None:
        return f"answered {status}, it needs a login; write USER:PASSWORD@ before its host, in a separate file"
    return f"answered {status}, it refuses the user or password; correct them in proxy"
