"""Packets of mDNS as bytes: answers that describe one service, as a machine or a flood sends them."""

from __future__ import annotations

import struct

SERVICE = "_memwatch._tcp.local"
RESPONSE, FLUSH = 0x8400, 0x8001


def encode_name(name: str) -> bytes:
    labels = [label.encode() for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def record(name: str, kind: int, data: bytes, ttl: int = 120, cls: int = FLUSH) -> bytes:
    return encode_name(name) + struct.pack(">HHIH", kind, cls, ttl, len(data)) + data


def answer(name: str, host: str = "spark.local", address: str = "10.0.0.2", run: str = "1a") -> bytes:
    """Return an answer with the four records of a service."""
    instance = f"{name}.{SERVICE}"
    text = b"".join(bytes([len(part)]) + part for part in (f"run={run}".encode(), b"tls=0"))
    records = (
        record(SERVICE, 12, encode_name(instance), 4500, 1)
        + record(instance, 33, struct.pack(">HHH", 0, 0, 6360) + encode_name(host))
        + record(instance, 16, text)
        + record(host, 1, bytes(map(int, address.split("."))))
    )
    return struct.pack(">HHHHHH", 0, RESPONSE, 0, 4, 0, 0) + records
