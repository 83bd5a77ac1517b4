"""Announce this memwatchd and find others by mDNS (_memwatch._tcp). The extra `mdns` installs its library."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import threading
from collections import deque
from contextlib import ExitStack, closing
from importlib import import_module
from typing import Any

from msgspec import Struct

from memwatch.monitor.neighbours.found import FoundMachines
from memwatchd.neighbours.mdns_packet import PTR
from memwatchd.neighbours.mdns_search import NAME_LENGTH, SERVICE, Search

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
# Interval of a check for other addresses.
ADDRESS_SECONDS = 10.0
ANY, ANY_IPV6 = "0.0.0.0", "::"  # noqa: S104  compared
# Names of other services that the library's cache keeps.
MAX_NAMES = 64


class Announcement(Struct, frozen=True):
    """A listener that other machines can reach. `host`: its address or name, or a wildcard."""

    port: int
    has_tls: bool
    host: str = ANY


class Discovery:
    """Thread that announces this process, if it has a listener for others, and keeps the list of machines found."""

    def __init__(self, found: FoundMachines, host: str, run: str, announced: Announcement | None) -> None:
        self._found, self._host, self._run_id, self._announced = found, host, run, announced
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mdns", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        zeroconf = import_module("zeroconf")
        while not self._stop.is_set():
            try:
                self._serve(zeroconf)
            except Exception as error:  # noqa: PERF203  the network may come later
                log.debug("traceback of mDNS", exc_info=True)
                log.warning("mDNS failed, retrying in %g s: %s", RETRY_SECONDS, str(error) or type(error).__name__)
                self._found.clear()
                self._stop.wait(RETRY_SECONDS)

    def _serve(self, zeroconf: Any) -> None:  # noqa: ANN401  a module that may not be installed
        """Announce and search until the end, or until this machine gets or loses an address.

        The library uses the addresses of its start: at boot, the network may have none yet.
        """
        before = set(zeroconf.get_all_addresses())
        with ExitStack() as stack:
            search = stack.enter_context(closing(Search(self._found, sorted(before))))
            addresses = [] if self._announced is None else _addresses(zeroconf, self._announced.host)
            if self._announced is not None and addresses:
                server = stack.enter_context(closing(_open_server(zeroconf)))
                info = self._describe(zeroconf, self._announced, addresses)
                server.register_service(info, allow_name_change=True)
            while set(zeroconf.get_all_addresses()) == before:
                search.take_answers(ADDRESS_SECONDS, self._stop.is_set)
                if self._stop.is_set():
                    break
        self._found.clear()

    def _describe(self, zeroconf: Any, announced: Announcement, addresses: list[str]) -> Any:  # noqa: ANN401
        label = re.sub(r"[^A-Za-z0-9-]", "-", self._host)[:NAME_LENGTH].strip("-") or "memwatchd"
        return zeroconf.ServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            announced.port,
            properties={"run": self._run_id, "tls": "1" if announced.has_tls else "0"},
            server=f"{label}.local.",
            parsed_addresses=addresses,
        )


def _open_server(zeroconf: Any) -> Any:  # noqa: ANN401
    """Open the library's part, which announces. It keeps everything that it receives: drop that at once."""
    server = zeroconf.Zeroconf(ip_version=zeroconf.IPVersion.V4Only)

    class Forget(zeroconf.RecordUpdateListener):  # type: ignore[misc]
        """Removes records from the cache, except names of other services: a new name must differ from them."""

        def __init__(self) -> None:
            self._received: list[Any] = []
            self._names: deque[Any] = deque()

        def async_update_records(self, _zc: Any, _now: float, updates: list[Any]) -> None:  # noqa: ANN401
            for update in updates:
                is_name = update.new.type == PTR and update.new.name.lower() == SERVICE
                (self._names if is_name else self._received).append(update.new)

        def async_update_records_complete(self) -> None:
            while len(self._names) > MAX_NAMES:
                self._received.append(self._names.popleft())
            cache, received = server.cache, dict.fromkeys(self._received)
            cache.async_remove_records([one for one in received if cache.async_get_unique(one) is not None])
            self._received.clear()

    server.add_listener(Forget(), None)
    return server


def _addresses(zeroconf: Any, host: str) -> list[str]:  # noqa: ANN401
    """Return the IPv4 addresses of a listener, none for an IPv6 address. Raises OSError for a name without one."""
    if ":" in host and host != ANY_IPV6:
        return []
    if host not in (ANY, ANY_IPV6):
        return [socket.gethostbyname(host)]
    return [one for one in zeroconf.get_all_addresses() if not ipaddress.ip_address(one).is_loopback]
