"""Answers of mDNS, which any machine of the network writes, and the budget of each source address."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterable
from typing import cast

import pytest

from memwatchd.neighbours.mdns import (
    MAX_BATCH,
    MAX_PACKETS_BY_SOURCE,
    MAX_SOURCES,
    PORT,
    SERVICE,
    Budget,
    PacketError,
    Service,
    build_question,
    drain,
    parse_services,
    read_service,
)
from support.mdns_packets import RESPONSE, answer, encode_name, record

POINTER = struct.pack(">H", 0xC00C)


def packet(*records: bytes, flags: int = RESPONSE, count: int | None = None) -> bytes:
    number = len(records) if count is None else count
    return struct.pack(">HHHHHH", 0, flags, 0, number, 0, 0) + b"".join(records)


def test_answer_describes_a_service() -> None:
    (found,) = parse_services(answer("spark-2"), SERVICE)

    assert found == Service(
        f"spark-2.{SERVICE}", 4500, "spark.local.", 6360, ("10.0.0.2",), {b"run": b"1a", b"tls": b"0"}
    )
    machine = read_service(found)
    assert machine is not None
    assert (machine.name, machine.url, machine.run) == ("spark-2", "http://10.0.0.2:6360", "1a")


def test_compressed_names_are_read() -> None:
    """The name of the service refers to that of the question's type at byte 12, as real answers do."""
    instance = b"\x05spark" + POINTER
    pointer = encode_name(SERVICE) + struct.pack(">HHIH", 12, 1, 0, len(instance)) + instance

    assert parse_services(packet(pointer), SERVICE) == [Service(f"spark.{SERVICE}", 0)]


@pytest.mark.parametrize(
    "data",
    [
        packet(record("_other._tcp.local", 12, encode_name("a._other._tcp.local"))),
        answer("spark").replace(struct.pack(">HH", 0, RESPONSE), struct.pack(">HH", 0, 0), 1),
        build_question(SERVICE),
        packet(),
    ],
    ids=["other type", "not an answer", "question", "empty"],
)
def test_other_packets_describe_nothing(data: bytes) -> None:
    assert parse_services(data, SERVICE) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        answer("spark")[:-1],
        packet(record("a", 12, b"")[:-2]),
        packet(POINTER + struct.pack(">HHIH", 12, 1, 0, 0)),
        packet(b"\xc0\x0e\xc0\x0c" + struct.pack(">HHIH", 12, 1, 0, 0)),
        packet(record("a", 1, b""), count=65),
        packet(record(".".join(["x" * 60] * 5), 12, b"")),
        b"\0" * 9001,
    ],
    ids=["empty", "cut", "half a record", "loop", "loop of two", "records", "long name", "long packet"],
)
def test_invalid_packets_are_refused(data: bytes) -> None:
    with pytest.raises(PacketError):
        parse_services(data, SERVICE)


def test_changed_packets_are_read_or_refused() -> None:
    """5,000 answers with changed, missing and repeated bytes raise no other error."""
    source, refused = random.Random(5), 0
    for _ in range(5000):
        data = bytearray(answer("spark-2"))
        for _ in range(source.randint(1, 8)):
            data[source.randrange(len(data))] = source.randrange(256)
        try:
            services = parse_services(bytes(data[: source.randint(10, len(data))]), SERVICE)
        except PacketError:
            refused += 1
        else:
            for service in services:
                read_service(service)

    assert 0 < refused < 5000


def test_source_address_has_a_budget_of_packets() -> None:
    """It is spent within a second, and another address has its own. Too many addresses get none."""
    budget = Budget()
    admitted = [budget.admits("10.0.0.9", 100.0) for _ in range(1000)]
    others = [budget.admits(f"10.0.{number >> 8}.{number & 255}", 100.5) for number in range(1000)]

    assert admitted.count(True) == MAX_PACKETS_BY_SOURCE
    assert 200 < others.count(True) <= MAX_SOURCES
    assert budget.admits("10.0.0.9", 101.1)


class Received:
    """Non-blocking socket that holds these packets, by source and port."""

    def __init__(self, sources: Iterable[tuple[str, int]]) -> None:
        self._sources = list(sources)

    def recvfrom(self, _: int) -> tuple[bytes, tuple[str, int]]:
        if not self._sources:
            raise BlockingIOError
        return b"packet", self._sources.pop(0)


@pytest.mark.parametrize(
    ("sources", "taken", "is_flood"),
    [
        ([("10.0.0.1", PORT)] * MAX_PACKETS_BY_SOURCE, MAX_PACKETS_BY_SOURCE, False),
        ([("10.0.0.1", PORT)] * (MAX_PACKETS_BY_SOURCE + 1), MAX_PACKETS_BY_SOURCE, True),
        ([("10.0.0.1", 999)] * MAX_PACKETS_BY_SOURCE + [("10.0.0.1", PORT)], 1, False),
        ([("10.0.0.1", 999)] * (MAX_PACKETS_BY_SOURCE + 1) + [("10.0.0.1", PORT)], 1, True),
        ([(f"10.0.0.{number}", PORT) for number in range(166)], 166, False),
        ([(f"10.0.0.{number % 250}", PORT) for number in range(MAX_BATCH + 1)], MAX_BATCH, True),
    ],
    ids=["machine", "flood that fits a socket", "questions", "flood of questions", "many machines", "full batch"],
)
def test_flood_is_noticed_also_where_the_socket_holds_little_of_it(
    sources: list[tuple[str, int]], taken: int, is_flood: bool
) -> None:
    """Linux keeps 166 packets of 217 bytes. What a busy memwatchd read of a flood was taken for all of it."""
    found: list[str] = []

    received = cast(socket.socket, Received(sources))
    assert drain(received, Budget(), lambda _, source: found.append(source), 100.0) is is_flood
    assert len(found) == taken
