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

from memwatch_monitor.history.ring_file import BLOCK, RingFile, Stamp
from support.disk_day import run_day

SIZE = 20 << 20
SLOTS = SIZE // BLOCK
TICK_BYTES = 900
HOURS = 4.0


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


def bench_store(sheet: Sheet, times: int = 500) -> None:
    print(f"| one tick of {TICK_BYTES} bytes, synced | ms, median | bytes to the disk |\n|---|---:|---:|")
    for name, writer in (("ring of blocks", ring_writer), ("SQLite, WAL, synchronous=FULL", sqlite_writer)):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", ".")) as folder:
            took, written = synced(writer(Path(folder)), times)
        print(f"| {name} | {took:.2f} | {written:,.0f} |")
    sheet.end()
    sheet.head("disk", "history on disk at low pressure", Column("MB a day", ".0f"))
    for series, moving in ((16, 6), (100, 50)):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", ".")) as folder:
            day = run_day(Path(folder), series, moving, HOURS)
        sheet.row(f"{series} series, {moving} of which change each second", day.megabytes)
    sheet.end()
