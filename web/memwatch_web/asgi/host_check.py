"""Host allow-list against DNS rebinding: names of this machine, configured names and domains, numeric addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection

from memwatch.core.options import HOST_NAME
from memwatch_web.asgi.options import WebOptions

MAX_REMEMBERED = 1000
# Names may have any letter but blanks and control characters, such as a tab: parsers treat these differently.
HOST_AND_PORT = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f:\[\]]*)(?::[0-9]*)?")
MAX_NAME_LENGTH = 253 + len(":65535")

OwnNamesSource = Callable[[], frozenset[str]]


class HostCheck:
    """Check of Host headers, with a cache that ends when a name or an option changes."""

    def __init__(self, own_names: OwnNamesSource) -> None:
        self._own_names = own_names
        self._own = own_names()
        self._known: dict[bytes, bool] = {}
        self._known_for: object = None

    def renew(self) -> None:
        """Update the names of this machine, which may change."""
        self._own = self._own_names()

    def is_known(self, header: bytes, options: WebOptions) -> bool:
        names = options.hosts, options.certificate_names, self._own
        if names != self._known_for:
            self._known_for = names
            self._known.clear()
        known = self._known.get(header)
        if known is None:
            allowed = {
                "localhost",
                *self._own,
                *options.certificate_names,
                *(name.lower() for name in options.hosts),
            }
            known = is_allowed(header.decode("latin-1"), allowed)
            if len(self._known) < MAX_REMEMBERED and len(header) <= MAX_NAME_LENGTH:
                self._known[header] = known
        return known


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
