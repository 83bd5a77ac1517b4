"""Samples of this process and its machine, and a thread that takes them at intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Absent, Bytes
from memwatch.library.frameworks import TOTALS, sum_stats
from memwatch.library.host import host, rss_bytes
from memwatch.library.memory_pool import PoolStats, greater
from memwatch.library.never_raise import never_raise

COUNTED = ("allocated_bytes", "reserved_bytes", *TOTALS)
NOT_COUNTED = (Absent.NOT_SUPPORTED,) * len(COUNTED)


class Sample(Struct, frozen=True):
    """One sample. `pool_used_bytes` and `pool_available_bytes`: System RAM; the others: this process.

    Counts and totals are those of the allocators since their start.
    """

    unix: float
    pool_used_bytes: Bytes
    pool_available_bytes: Bytes
    rss_bytes: Bytes
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    allocations: int | Absent
    frees: int | Absent = Absent.NOT_SUPPORTED
    total_allocated_bytes: Bytes = Absent.NOT_SUPPORTED
    total_freed_bytes: Bytes = Absent.NOT_SUPPORTED


def build_sample(found: list[PoolStats]) -> Sample:
    """Build a sample from the statistics of all pools, read just now."""
    ram, stats = host.ram(), sum_stats(found)
    return Sample(
        time.time(),
        ram if isinstance(ram, Absent) else ram.total_bytes - ram.available_bytes,
        ram if isinstance(ram, Absent) else ram.available_bytes,
        rss_bytes(),
        *(NOT_COUNTED if stats is None else [getattr(stats, name) for name in COUNTED]),
    )


class PeriodicSampler:
    """A thread that calls `callback` at intervals."""

    def __init__(self, callback: Callable[[], None], interval_seconds: float) -> None:
        self._callback = callback
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memwatch-sampling", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._once()

    @never_raise(None)
    def _once(self) -> None:
        self._callback()


def difference(after: Bytes, before: Bytes) -> Bytes:
    if isinstance(after, Absent):
        return after
    return before if isinstance(before, Absent) else after - before


class Peak(Struct, frozen=True):
    """Peaks of one stage. `exact`: those that a counter kept; the others are maxima of samples."""

    stage: str
    samples: int = 0
    pool_used_bytes: Bytes = Absent.NOT_AVAILABLE
    rss_bytes: Bytes = Absent.NOT_AVAILABLE
    allocated_bytes: Bytes = Absent.NOT_AVAILABLE
    reserved_bytes: Bytes = Absent.NOT_AVAILABLE
    visits: int = 0
    exact: tuple[str, ...] = ()

    def with_sample(self, sample: Sample) -> Peak:
        return replace(
            self,
            samples=self.samples + 1,
            pool_used_bytes=greater(self.pool_used_bytes, sample.pool_used_bytes),
            rss_bytes=greater(self.rss_bytes, sample.rss_bytes),
            allocated_bytes=greater(self.allocated_bytes, sample.allocated_bytes),
            reserved_bytes=greater(self.reserved_bytes, sample.reserved_bytes),
        )
