"""Files of the history, damaged in any way: intact records are read, and damage never prevents a start."""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from memwatch.core.events import EventLog
from memwatch.core.helper.codec import DecodeError
from memwatch.reporting.history.notable_ticks import NotableTicks
from memwatch_monitor.history.holders import HolderHistory, parse_name
from memwatch_monitor.history.records import MAX_ROWS, pack_rows, unpack_entry, unpack_rows
from memwatch_monitor.history.restore import restore
from memwatch_monitor.history.ring_file import (
    BLOCK,
    CRC,
    HEAD,
    HEAD_BYTES,
    MAGIC,
    PARTS,
    Stamp,
    open_ring_set,
    prepare,
)
from memwatch_monitor.history.tiers import History

MAX_BYTES = 3 * BLOCK
SIZE = 256 << 10
NOW = Stamp(9, 1000.0, 1.7e9, b"\5" * 16)
FILES = tuple(PARTS)


def check(data: bytes) -> None:
    """Check a file: the first byte chooses it, and whether its checksums are corrected before it is read."""
    which, body = data[:1] or b"\0", data[1:]
    rows(body)
    if which[0] & 128:
        body = with_right_sums(body)
    with TemporaryDirectory(prefix="memwatch-fuzz-") as folder:
        (Path(folder) / f"{FILES[which[0] % len(FILES)]}.ring").write_bytes(body)
        history = History()
        ring_set = open_ring_set(Path(folder), SIZE, NOW.wall)
        events = EventLog()
        holders = HolderHistory()
        words = restore(ring_set, history, holders, NotableTicks(), events, NOW).unclean_shutdown
        assert words is None or words.sentence
        stored = events.since(0)
        assert events.add(0.0, "started", "again").seq > max((event.seq for event in stored), default=0)
        for name in history.names():
            assert len(history.query(name, history.start, history.end, 10)) <= 11
        for name in holders.names():
            assert parse_name(name)
            assert len(holders.history.query(name, -1e12, 1e12, 10)) <= 11
        assert sum(len(tier) for tier in history.tiers) <= len(body) * MAX_ROWS
        prepare(ring_set, NOW)
        for ring in ring_set.rings.values():
            ring.append(1, NOW, b"after")
            ring.close()
        again = open_ring_set(Path(folder), SIZE, NOW.wall)
        for name, ring in again.rings.items():
            newest = again.contents[name].records[-1]
            assert (newest.stamp, ring.payload(newest)) == (NOW, b"after")
            ring.close()


def rows(data: bytes) -> None:
    for packed in (data, zlib.compress(data, 0)):
        with suppress(DecodeError):
            row_block, _ = unpack_rows(packed)
            again, _ = unpack_rows(pack_rows(row_block))
            assert len(again.times) == len(row_block.times)
            assert list(again.columns) == list(row_block.columns)
        with suppress(DecodeError):
            unpack_entry(packed)


def with_right_sums(data: bytes) -> bytes:
    """Correct the checksums, whatever the fields contain."""
    whole = bytearray(data)
    for start in range(0, len(data), BLOCK):
        if data.startswith(MAGIC, start) and len(data) >= start + HEAD_BYTES:
            head = data[start : start + HEAD.size]
            length = HEAD.unpack(head)[3]
            payload = data[start + HEAD_BYTES : start + HEAD_BYTES + length]
            whole[start + HEAD.size : start + HEAD_BYTES] = CRC.pack(zlib.crc32(payload, zlib.crc32(head)))
    return bytes(whole)
