"""Rows of the outbox's tables, each with a checksum: SQLite's checks miss flipped bits (measured, 2 of 2)."""

from __future__ import annotations

import zlib

from msgspec import Struct, field

from memwatch.monitor.notify.outbox.queue import DeliveredState, Kind, Message

Cell = str | bytes | int | float | None
Row = tuple[Cell, ...]

MAX_BODY_BYTES = 1 << 20


class OutboxRowError(ValueError):
    """A row with a wrong checksum or invalid values."""


class StoredOutbox(Struct):
    """Content of the disk. By receiver: messages, and delivered alerts (`delivered`). Also named values."""

    messages: dict[str, list[Message]] = field(default_factory=dict)
    delivered: dict[str, list[tuple[str, DeliveredState]]] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    last_seq: int = 0
    bad_rows: int = 0


class Batch(Struct):
    """Content of one transaction: rows by their keys, None for rows to delete."""

    messages: dict[int, Row | None] = field(default_factory=dict)
    delivered: dict[tuple[str, str], Row | None] = field(default_factory=dict)
    values: dict[str, Row] = field(default_factory=dict)
    everything: bool = False  # all other rows are deleted


def message_row(receiver: str, message: Message) -> Row:
    aggregates = (
        message.seq,
        receiver,
        message.id,
        message.alert,
        message.kind.value,
        message.body,
        message.attempts,
    )
    return (*aggregates, checksum(aggregates))


def parse_message(row: Row) -> tuple[str, Message]:
    """Parse a row into receiver and message. Raises OutboxRowError."""
    seq, receiver, its_id, alert, kind, body, attempts = verify(row)
    if not isinstance(seq, int) or not isinstance(attempts, int) or not isinstance(body, bytes):
        raise OutboxRowError
    try:
        return str(receiver), Message(seq, str(its_id), str(alert), Kind(kind), body, attempts)
    except ValueError:
        raise OutboxRowError from None


def delivered_row(receiver: str, alert: str, delivered: DeliveredState) -> Row:
    aggregates = (receiver, alert, int(delivered.may_have_arrived), delivered.body)
    return (*aggregates, checksum(aggregates))


def parse_delivered(row: Row) -> tuple[str, str, DeliveredState]:
    """Parse a row into receiver, alert and delivery state. Raises OutboxRowError."""
    receiver, alert, may_have_arrived, body = verify(row)
    if not isinstance(body, bytes):
        raise OutboxRowError
    return str(receiver), str(alert), DeliveredState(bool(may_have_arrived), body)


def value_row(name: str, value: bytes) -> Row:
    return (name, value, checksum((name, value)))


def parse_value(row: Row) -> tuple[str, bytes]:
    """Parse a row into name and value. Raises OutboxRowError."""
    name, value = verify(row)
    if not isinstance(value, bytes):
        raise OutboxRowError
    return str(name), value


def verify(row: Row) -> Row:
    """Return the row without its checksum. Raises OutboxRowError if the checksum is wrong."""
    *aggregates, sum_found = row
    if checksum(tuple(aggregates)) != sum_found:
        raise OutboxRowError
    return tuple(aggregates)


def checksum(aggregates: Row) -> int:
    """Return the CRC-32 of the cells with their types and lengths, which keeps cell boundaries distinct."""
    total = 0
    for aggregate in aggregates:
        data = aggregate if isinstance(aggregate, bytes) else str(aggregate).encode("utf-8", "surrogateescape")
        total = zlib.crc32(data, zlib.crc32(b"%s%d:" % (type(aggregate).__name__.encode(), len(data)), total))
    return total
