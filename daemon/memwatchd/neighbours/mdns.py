"""Announce this memwatchd and find others by mDNS (_memwatch._tcp, RFC 6762). The extra `mdns` has its library.

The search has a separate socket. The library's browser keeps every name that it receives, and asks for each one
in turn: a flood of names fills memory and hides real machines. Here each answer is used alone, and each source
address has a budget of packets.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from importlib import import_module
from typing import Any

from msgspec import Struct

from memwatch.core.printable import printable
from memwatch_monitor.feature import Feature
from memwatch_monitor.neighbours.found import FoundMachine, FoundMachines

MAX_PACKET_BYTES = 9000
MAX_RECORDS = 64
MAX_NAME_BYTES = 255
# A machine announces one service for each memwatchd.
MAX_SERVICES = 4
RESPONSE = 0x8000
A, PTR, TXT, SRV, IN = 1, 12, 16, 33, 1
HEADER, RECORD, SRV_HEAD = struct.Struct(">HHHHHH"), struct.Struct(">HHIH"), struct.Struct(">HHH")
SERVICE = "_memwatch._tcp.local."
GROUP, PORT = "224.0.0.251", 5353
# Pauses after the first questions; then one a minute. Every machine answers each.
FIRST_PAUSES = (1.0, 2.0, 4.0)
QUESTION_SECONDS = 60.0
# A machine sends three announcements and one answer a minute. What is over the budget is not parsed (70 µs each).
MAX_PACKETS_BY_SOURCE, MAX_SOURCES, BUDGET_SECONDS = 20, 256, 1.0
# In a flood of the group, the kernel drops what is over MAX_BATCH packets in this pause: 6 % of a core at most.
# Announcements may be among them, so questions are more frequent. A full socket may hold less than MAX_BATCH: 166
# packets of 217 bytes by Linux' default of 208 KiB. So a source over its budget is a flood, too.
MAX_BATCH, FLOOD_PAUSE_SECONDS, FLOOD_QUESTION_SECONDS = 256, 0.02, 5.0
# Interval of a check for the end.
CHECK_SECONDS = 1.0
NAME_LENGTH = 63
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
RUN = re.compile(r"[0-9a-f]{1,16}")


class PacketError(ValueError):
    """The packet is not valid DNS."""


class Service(Struct, frozen=True):
    """One announced service. `ttl` 0: it ends. The other fields are empty if the packet does not have them."""

    name: str
    ttl: int
    server: str = ""
    port: int = 0
    addresses: tuple[str, ...] = ()
    properties: Mapping[bytes, bytes] = {}


class Record(Struct, frozen=True):
    """A resource record. Its data starts at `start`, as names in it refer to earlier parts of the packet."""

    name: str
    kind: int
    ttl: int
    start: int
    size: int


def build_question(service_type: str) -> bytes:
    """Return the question for all services of a type, to be answered by multicast."""
    labels = [label.encode("ascii") for label in service_type.rstrip(".").split(".")]
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return HEADER.pack(0, 0, 1, 0, 0, 0) + name + struct.pack(">HH", PTR, IN)


def parse_services(data: bytes, service_type: str) -> list[Service]:
    """Return the services of a type in an answer, none for a question. Raises PacketError."""
    try:
        return _read_services(data, service_type)
    except (IndexError, struct.error) as error:
        raise PacketError(f"cut off: {error}") from None


def _read_services(data: bytes, service_type: str) -> list[Service]:
    if len(data) > MAX_PACKET_BYTES:
        raise PacketError("too long")
    records = list(_read_records(data))
    pointers = [one for one in records if one.kind == PTR and one.name.lower() == service_type.lower()]
    servers = {one.name.lower(): one for one in records if one.kind == SRV}
    texts = {one.name.lower(): one for one in records if one.kind == TXT}
    found = []
    for pointer in pointers[:MAX_SERVICES]:
        name, _ = _read_name(data, pointer.start)
        server, text = servers.get(name.lower()), texts.get(name.lower())
        host, port = ("", 0) if server is None else _read_server(data, server)
        addresses = tuple(_read_addresses(data, records, host.lower()))
        found.append(
            Service(name, pointer.ttl, host, port, addresses, {} if text is None else _read_text(data, text))
        )
    return found


def _read_records(data: bytes) -> Iterator[Record]:
    _, flags, questions, *counts = HEADER.unpack_from(data)
    if not flags & RESPONSE:
        return
    if questions + sum(counts) > MAX_RECORDS:
        raise PacketError("too many records")
    at = HEADER.size
    for _ in range(questions):
        at = _read_name(data, at)[1] + 4
    for _ in range(sum(counts)):
        name, at = _read_name(data, at)
        kind, _, ttl, size = RECORD.unpack_from(data, at)
        at += RECORD.size
        if at + size > len(data):
            raise PacketError("cut off")
        yield Record(name, kind, ttl, at, size)
        at += size


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    """Return a name with its final dot, and the place after it. A pointer must lead back, so there is no loop."""
    labels: list[bytes] = []
    after, size, earliest = 0, 0, at
    while (length := data[at]) != 0:
        if length >= 0xC0:
            after = after or at + 2
            target = (length & 0x3F) << 8 | data[at + 1]
            if target >= earliest:
                raise PacketError("a name refers to itself")
            at = earliest = target
            continue
        size += length + 1
        if length > 63 or size > MAX_NAME_BYTES or at + 1 + length > len(data):
            raise PacketError("a name is not valid")
        labels.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    return b".".join([*labels, b""]).decode("utf-8", "replace"), after or at + 1


def _read_server(data: bytes, record: Record) -> tuple[str, int]:
    _, _, port = SRV_HEAD.unpack_from(data, record.start)
    return _read_name(data, record.start + SRV_HEAD.size)[0], port


def _read_text(data: bytes, record: Record) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at, end = record.start, record.start + record.size
    while at < end:
        key, _, value = data[at + 1 : min(at + 1 + data[at], end)].partition(b"=")
        found.setdefault(key.lower(), value)
        at += 1 + data[at]
    return found


def _read_addresses(data: bytes, records: list[Record], host: str) -> Iterator[str]:
    for record in records:
        if record.kind == A and record.size == 4 and record.name.lower() == host:
            yield socket.inet_ntoa(data[record.start : record.start + 4])


class Budget:
    """Number of packets that a source address may send within a second. Sources beyond MAX_SOURCES get none."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._began_at = 0.0

    def admits(self, source: str, now: float) -> bool:
        if now - self._began_at >= BUDGET_SECONDS:
            self._began_at = now
            self._counts.clear()
        if self._counts[source] >= MAX_PACKETS_BY_SOURCE or len(self._counts) > MAX_SOURCES:
            return False
        self._counts[source] += 1
        return True


def drain(opened: socket.socket, budget: Budget, take: Callable[[bytes, str], None], now: float) -> bool:
    """Take the packets that are there. Return whether they are a flood: over a budget, or perhaps not all."""
    is_flood = False
    for _ in range(MAX_BATCH):
        try:
            data, (source, port) = opened.recvfrom(MAX_PACKET_BYTES + 1)
        except BlockingIOError:
            return is_flood
        # Machines answer from this port. Packets from others may fill the socket as well.
        is_answer = port == PORT
        if not budget.admits(source if is_answer else f"others of {source}", now):
            is_flood = True
        elif is_answer:
            take(data, source)
    return True


class Search:
    """Asks for services at all addresses of this machine, and puts those that answer into `found`.

    Each question goes out twice: from port 5353, so that machines answer to the group, and from a new port, so that
    they answer to it alone (RFC 6762, 6.7). A flood of the group does not reach that port; firewalls may close it.
    """

    def __init__(self, found: FoundMachines, addresses: Sequence[str]) -> None:
        self._found, self._addresses = found, addresses
        self._budget = Budget()
        self._question = build_question(SERVICE)
        self._pauses = list(FIRST_PAUSES)
        self._ask_at = time.monotonic()
        self._group = open_group(addresses)
        self._own = open_asking()

    def close(self) -> None:
        self._group.close()
        self._own.close()

    def take_answers(self, seconds: float, is_stopped: Callable[[], bool]) -> None:
        """Ask when it is time, and take answers for that many seconds, or until `is_stopped`."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until and not is_stopped():
            if now >= self._ask_at:
                self._ask(now)
            poll = select.poll()
            for one in (self._own, self._group):
                poll.register(one, select.POLLIN)
            poll.poll(min(CHECK_SECONDS, until - now) * 1000)
            floods = [drain(one, self._budget, self._take, now) for one in (self._own, self._group)]
            if any(floods):
                self._ask_at = min(self._ask_at, now + FLOOD_QUESTION_SECONDS)
                time.sleep(FLOOD_PAUSE_SECONDS)

    def _take(self, data: bytes, source: str) -> None:
        try:
            services = parse_services(data, SERVICE)
        except PacketError:
            return
        for service in services:
            if service.ttl == 0:
                self._found.remove(source, service.name)
            elif (machine := read_service(service)) is not None:
                self._found.put(source, service.name, machine)

    def _ask(self, now: float) -> None:
        self._ask_at = now + (self._pauses.pop(0) if self._pauses else QUESTION_SECONDS)
        if not self._pauses:
            self._found.expire()
        self._own.close()
        self._own = open_asking()
        for asking in (self._group, self._own):
            for address in self._addresses:
                with suppress(OSError):  # an interface without multicast, or without a network now
                    asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
                    asking.sendto(self._question, (GROUP, PORT))


def open_asking() -> socket.socket:
    """Open a socket without a fixed port."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    return opened


def open_group(addresses: Sequence[str]) -> socket.socket:
    """Open a socket for multicast at these addresses. Raises OSError.

    It is bound to the group: answers to one machine belong to the sockets of the library and of other programs.
    """
    opened = open_asking()
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind((GROUP, PORT))
        for address in addresses:
            with suppress(OSError):
                request = socket.inet_aton(GROUP) + socket.inet_aton(address)
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    except BaseException:
        opened.close()
        raise
    return opened


def read_service(service: Service) -> FoundMachine | None:
    """Return the machine of a service; None if it is not usable. Any machine of the network may have written it."""
    has_tls = service.properties.get(b"tls") == b"1"
    run = service.properties.get(b"run", b"").decode("ascii", "replace")
    host = service.server.rstrip(".") if has_tls else next(iter(service.addresses), "")
    is_valid = HOST_NAME.fullmatch(host) and RUN.fullmatch(run) and service.port
    if not is_valid:
        return None
    label = printable(service.name[: -len(SERVICE) - 1])[:NAME_LENGTH]
    return FoundMachine(label, f"{'https' if has_tls else 'http'}://{host}:{service.port}", run)


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


class Discovery(Feature):
    """Thread that announces this process, if it has a listener for others, and keeps the list of machines found."""

    name = "mDNS"

    def __init__(self, found: FoundMachines, host: str, run: str, announced: Announcement | None) -> None:
        self._found, self._host, self._run_id, self._announced = found, host, run, announced
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mdns", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
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
