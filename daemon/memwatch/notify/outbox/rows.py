"""Rows of the outbox's tables, each with a checksum: SQLite's checks miss flipped bits (measured, 2 of 2)."""

from __future__ import annotations

import zlib

from msgspec import Struct, field

from memwatch.notify.outbox.queue import Heard, Kind, Message

Cell = str | bytes | int | float | None
Row = tuple[Cell, ...]

BODY_MOST_BYTES = 1 << 20


class BadRow(ValueError):
    """A row with a wrong checksum or invalid values."""


class Kept(Struct):
    """Content of the disk. By receiver: messages, and delivered alerts (`heard`). Also named values."""

    messages: dict[str, list[Message]] = field(default_factory=dict)
    heard: dict[str, list[tuple[str, Heard]]] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    last_seq: int = 0
    bad_rows: int = 0


class Batch(Struct):
    """Content of one transaction: rows by their keys, None for rows to delete."""

    messages: dict[int, Row | None] = field(default_factory=dict)
    heard: dict[tuple[str, str], Row | None] = field(default_factory=dict)
    values: dict[str, Row] = field(default_factory=dict)
    everything: bool = False  # all other rows are deleted


def message_row(receiver: str, message: Message) -> Row:
    cells = (message.seq, receiver, message.id, message.alert, message.kind.value, message.body, message.attempts)
    return (*cells, checksum(cells))


def message_of(row: Row) -> tuple[str, Message]:
    """Parse a row into receiver and message. Raises BadRow."""
    seq, receiver, its_id, alert, kind, body, attempts = checked(row)
    if not isinstance(seq, int) or not isinstance(attempts, int) or not isinstance(body, bytes):
        raise BadRow
    try:
        return str(receiver), Message(seq, str(its_id), str(alert), Kind(kind), body, attempts)
    except ValueError:
        raise BadRow from None


def heard_row(receiver: str, alert: str, heard: Heard) -> Row:
    cells = (receiver, alert, int(heard.heard), heard.body)
    return (*cells, checksum(cells))


def heard_of(row: Row) -> tuple[str, str, Heard]:
    """Parse a row into receiver, alert and delivery state. Raises BadRow."""
    receiver, alert, heard, body = checked(row)
    if not isinstance(body, bytes):
        raise BadRow
    return str(receiver), str(alert), Heard(bool(heard), body)


def value_row(name: str, value: bytes) -> Row:
    return (name, value, checksum((name, value)))


def value_of(row: Row) -> tuple[str, bytes]:
    """Parse a row into name and value. Raises BadRow."""
    name, value = checked(row)
    if not isinstance(value, bytes):
        raise BadRow
    return str(name), value


def checked(row: Row) -> Row:
    """Return the row without its checksum. Raises BadRow if the checksum is wrong."""
    *cells, sum_found = row
    if checksum(tuple(cells)) != sum_found:
        raise BadRow
    return tuple(cells)


def checksum(cells: Row) -> int:
    """Return the CRC-32 of the cells with their types and lengths, which keeps cell boundaries distinct."""
    total = 0
    for cell in cells:
        data = cell if isinstance(cell, bytes) else str(cell).encode("utf-8", "surrogateescape")
        total = zlib.crc32(data, zlib.crc32(b"%s%d:" % (type(cell).__name__.encode(), len(data)), total))
    return total
