"""Address of a daemon: http://HOST:PORT, https://HOST:PORT or unix:/PATH."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from msgspec import Struct

from memwatch.core.options import InvalidValueError, parse_host, parse_socket
from memwatch.core.runtime.daemon_address import default_url

DEFAULT_PORT = 6360
PORTS = {"http": 80, "https": 443}


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
        if self.scheme == "unix" or self.host in ("localhost", socket.gethostname().lower()):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def start_command(self) -> str:
        """Command that starts a daemon at this address."""
        if self.scheme == "unix":
            return f"memwatchd --listen {self}"
        return "memwatchd" if self.port == DEFAULT_PORT else f"memwatchd --listen 127.0.0.1:{self.port}"


DEFAULT = Address("http", "127.0.0.1", DEFAULT_PORT)


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
    if parts.scheme not in PORTS or host is None or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidValueError
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidValueError
    number = PORTS[parts.scheme] if port is None else port
    return Address(parts.scheme, _parse_host(host), number, parts.path.rstrip("/"))


def _parse_host(host: str) -> str:
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise InvalidValueError from None
    return parse_host(host)
