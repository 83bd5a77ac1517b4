"""Announce this memwatchd and find others by mDNS (_memwatch._tcp). The extra `mdns` installs its library."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import threading
from importlib import import_module
from typing import Any

from msgspec import Struct

from memwatch.neighbours.found import FoundMachine, FoundMachines
from memwatch.printable import printable

log = logging.getLogger(__name__)

SERVICE = "_memwatch._tcp.local."
RETRY_SECONDS = 60.0
# Interval of a check for other addresses.
ADDRESS_SECONDS = 10.0
ANY, ANY_IPV6 = "0.0.0.0", "::"  # noqa: S104  compared
ANSWER_MILLISECONDS = 3000
NAME_LENGTH = 63
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
RUN = re.compile(r"[0-9a-f]{1,16}")


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
        server = zeroconf.Zeroconf(ip_version=zeroconf.IPVersion.V4Only)
        try:
            addresses = [] if self._announced is None else _addresses(zeroconf, self._announced.host)
            if self._announced is not None and addresses:
                info = self._describe(zeroconf, self._announced, addresses)
                server.register_service(info, allow_name_change=True)
            zeroconf.ServiceBrowser(server, SERVICE, handlers=[self._on_change])
            while not self._stop.wait(ADDRESS_SECONDS) and set(zeroconf.get_all_addresses()) == before:
                pass
        finally:
            server.close()
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

    def _on_change(self, zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:  # noqa: ANN401
        if state_change.name == "Removed":
            self._found.remove(name)
            return
        info = zeroconf.get_service_info(service_type, name, timeout=ANSWER_MILLISECONDS)
        machine = read_service(name, info) if info else None
        if machine is not None:
            self._found.put(name, machine)


def read_service(name: str, info: Any) -> FoundMachine | None:  # noqa: ANN401  a ServiceInfo
    """Return the machine of a service; None if it is not usable. Any machine of the network may have written it."""
    has_tls = info.properties.get(b"tls") == b"1"
    run = (info.properties.get(b"run") or b"").decode("ascii", "replace")
    host = info.server.rstrip(".") if has_tls else next(iter(info.parsed_addresses()), "")
    is_valid = HOST_NAME.fullmatch(host) and RUN.fullmatch(run) and info.port
    if not is_valid:
        return None
    label = printable(name.removesuffix(f".{SERVICE}"))[:NAME_LENGTH]
    return FoundMachine(label, f"{'https' if has_tls else 'http'}://{host}:{info.port}", run)


def _addresses(zeroconf: Any, host: str) -> list[str]:  # noqa: ANN401
    """Return the IPv4 addresses of a listener, none for an IPv6 address. Raises OSError for a name without one."""
    if ":" in host and host != ANY_IPV6:
        return []
    if host not in (ANY, ANY_IPV6):
        return [socket.gethostbyname(host)]
    return [one for one in zeroconf.get_all_addresses() if not ipaddress.ip_address(one).is_loopback]
