"""Measure the memory of a daemon after thirty days: started on a state folder with every tier full."""

from __future__ import annotations

import random
import tempfile
import time
from array import array
from pathlib import Path

from bench_machines import SETTLE_SECONDS, daemon_on, machine_of
from msgspec.structs import replace
from subjects import pss_mib, rss_mib

from memwatch.reporting.history.tier import Aggregates, RowBlock, TierSpec
from memwatch_monitor.history.records import ROWS, PayloadReader, pack_entry
from memwatch_monitor.history.ring_file import TIERS, open_ring_set
from memwatch_monitor.history.tiers import TIER_SPECS
from memwatch_monitor.history.writer import Files
from support.sleeping_processes import sleepers

DISK_BYTES = 64 << 20
STRIP_ROWS = 360
DAYS = 29
# Series that vary even on an idle machine, by up to one hundredth.
MOVING = ("pool.ram.", "self.", "psi.", "node.")


def fill(folder: Path) -> list[str]:
    """Replace the few seconds that a daemon has written by thirty days of its series, on its time line."""
    now = time.time()
    ring_set = open_ring_set(folder, DISK_BYTES, now)
    last = ring_set.records("fine", ROWS)[-1]
    written = PayloadReader(ring_set).rows("fine", last)
    if written is None:
        raise SystemExit(f"{folder}: the daemon wrote no rows")
    row_block = written[0]
    # Of an earlier boot, which was long enough.
    stamp = replace(last.stamp, boot=b"a boot before it", boottime=TIER_SPECS[-1].seconds + 1.0)
    values = {
        name: value for name, aggregates in row_block.columns.items() if (value := aggregates.minimum[-1]) == value
    }
    for path in folder.glob("*.ring"):
        path.unlink()
    files = Files(folder, DISK_BYTES, now)
    files.start(stamp)
    for name, length in zip(TIERS, TIER_SPECS, strict=True):
        for rows in _times_of(length, stamp.boottime):
            columns = {series: _cells(series, value, len(rows)) for series, value in values.items()}
            at = replace(stamp, boottime=rows[-1], wall=stamp.wall - stamp.boottime + rows[-1])
            files.append(name, ROWS, at, pack_entry(RowBlock(rows, columns)))
    files.stop(5.0)
    return list(values)


def _times_of(length: TierSpec, end: float) -> list[array[float]]:
    times = array("d", [end - length.step_seconds * back for back in range(length.rows, 0, -1)])
    return [times[start : start + STRIP_ROWS] for start in range(0, length.rows, STRIP_ROWS)]


def _cells(series: str, value: float, rows: int) -> Aggregates:
    if not series.startswith(MOVING):
        return Aggregates(array("f", [value]) * rows, array("f", [value]) * rows, array("H", [0]) * rows)
    least = array("f", [value * random.uniform(0.99, 1.0) for _ in range(rows)])
    most = array("f", [low + abs(value) * random.uniform(0, 0.01) for low in least])
    return Aggregates(least, most, array("H", [random.randrange(65536) for _ in range(rows)]))


def bench_full() -> None:
    """Measure with eight GPUs and 300 processes."""
    with tempfile.TemporaryDirectory() as state, sleepers(300):
        with daemon_on(machine_of(8), "--state-dir", state):
            time.sleep(5)
        series = fill(Path(state))
        began = time.monotonic()
        with daemon_on(machine_of(8), "--state-dir", state) as daemon:
            started = time.monotonic() - began
            time.sleep(SETTLE_SECONDS)
            rss, pss = rss_mib(daemon.pid), pss_mib(daemon.pid)
            past = daemon.get(
                f"/api/v1/history?series=pool.ram.used_bytes&from={time.time() - DAYS * 86_400}&points={DAYS}"
            ).json
    buckets = past["series"][0]["min"]
    if len(buckets) != DAYS or None in buckets:
        raise SystemExit(f"thirty days of history are missing: {buckets}")
    rows = sum(length.rows for length in TIER_SPECS)
    print(
        f"8 GPUs, every tier full ({rows:,} rows of {len(series)} series): RSS {rss:.1f} MiB = "
        f"{rss * 1.048576:.1f} MB, PSS {pss:.1f} MiB; the first answer {started:.2f} s after the start.\n"
    )


if __name__ == "__main__":
    bench_full()
