"""Measure history on disk: our ring of blocks against SQLite in WAL mode with as many slots, on the same disk."""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from sheet import Column, Sheet

from memwatch.reporting.history.tier import Aggregate
from memwatch_monitor.history.records import pack_entry
from memwatch_monitor.history.ring_file import BLOCK, RingFile, Stamp, blocks_for
from memwatch_monitor.history.tiers import History
from memwatch_monitor.history.writer import BATCH_ROWS, FLUSH_SECONDS

SIZE = 20 << 20
SLOTS = SIZE // BLOCK
TICK_BYTES = 900
DAY = 86_400.0


def bytes_to_disk() -> int:
    """Return the bytes that this process has written to storage."""
    text = Path("/proc/self/io").read_text()
    return int(text.partition("\nwrite_bytes: ")[2].partition("\n")[0])


def synced(write: Callable[[bytes], None], times: int) -> tuple[float, float]:
    """Return the median milliseconds until a record survives a power cut, and the bytes written for each."""
    payloads = [random.randbytes(TICK_BYTES) for _ in range(times)]
    took = []
    before = bytes_to_disk()
    for payload in payloads:
        started = time.perf_counter()
        write(payload)
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1000, (bytes_to_disk() - before) / times


def ring_writer(folder: Path) -> Callable[[bytes], None]:
    ring = RingFile(folder / "ring", SIZE)
    ring.prepare(ring.read())
    stamp = Stamp(1, 1.0, 1.0, bytes(16))

    def write(payload: bytes) -> None:
        ring.append(1, stamp, payload)
        ring.sync()

    return write


def sqlite_writer(folder: Path) -> Callable[[bytes], None]:
    """Return a writer of a table with fixed slots, each with a checksum, committed with synchronous=FULL."""
    base = sqlite3.connect(folder / "base", isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=256"):
        base.execute(f"PRAGMA {pragma}")
    base.execute("CREATE TABLE ticks (slot INTEGER PRIMARY KEY, seq INTEGER, at REAL, crc INTEGER, payload BLOB)")
    seq = 0

    def write(payload: bytes) -> None:
        nonlocal seq
        seq += 1
        row = (seq % SLOTS, seq, time.time(), zlib.crc32(payload), payload)
        base.execute("INSERT OR REPLACE INTO ticks VALUES (?, ?, ?, ?, ?)", row)

    return write


def wear_per_day(series: int, moving: int) -> float:
    """Return bytes a day at low pressure: `moving` of the series change each second, the others stay."""
    history = History()
    names = [f"pool.gpu{number % 8}.figure{number}_bytes" for number in range(series)]
    values = {name: random.random() * 64e9 for name in names}
    for second in range(4000):
        for name in names[:moving]:
            values[name] += random.gauss(0, 1e6)
        history.add_row(second, {name: Aggregate(value, value, value) for name, value in values.items()})
    per_day = 0.0
    tick = random.randbytes(TICK_BYTES)
    for index, tier in enumerate(history.tiers):
        rows = max(BATCH_ROWS[index], round(FLUSH_SECONDS / tier.spec.step_seconds))
        row_block, _ = history.written_since(index, tier.added - rows)
        blocks = blocks_for(len(pack_entry(row_block, tick if index == 0 else b"")))
        per_day += blocks * BLOCK * DAY / (rows * tier.spec.step_seconds)
    return per_day


def bench_store(sheet: Sheet, times: int = 500) -> None:
    print(f"| one tick of {TICK_BYTES} bytes, synced | ms, median | bytes to the disk |\n|---|---:|---:|")
    for name, writer in (("ring of blocks", ring_writer), ("SQLite, WAL, synchronous=FULL", sqlite_writer)):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", ".")) as folder:
            took, written = synced(writer(Path(folder)), times)
        print(f"| {name} | {took:.2f} | {written:,.0f} |")
    sheet.end()
    sheet.head("disk", "history on disk at low pressure", Column("MB a day", ".0f"))
    for series, moving in ((16, 6), (100, 50)):
        sheet.row(f"{series} series, {moving} of which change each second", wear_per_day(series, moving) / 1e6)
    sheet.end()
