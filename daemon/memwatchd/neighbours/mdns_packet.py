"""Packets of mDNS (RFC 6762): a question for a service, and the services that an answer describes. Pure functions.

Any machine of the network writes these packets. Each answer is used alone: nothing is kept between two packets.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

from msgspec import Struct

MAX_PACKET_BYTES = 9000
MAX_RECORDS = 64
MAX_NAME_BYTES = 255
# A machine announces one service for each memwatchd.
MAX_SERVICES = 4
RESPONSE = 0x8000
A, PTR, TXT, SRV, IN = 1, 12, 16, 33, 1
HEADER, RECORD, SRV_HEAD = struct.Struct(">HHHHHH"), struct.Struct(">HHIH"), struct.Struct(">HHH")


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
        addresses = tuple(_addresses(data, records, host.lower()))
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


def _addresses(data: bytes, records: list[Record], host: str) -> Iterator[str]:
    for record in records:
        if record.kind == A and record.size == 4 and record.name.lower() == host:
            yield socket.inet_ntoa(data[record.start : record.start + 4])
