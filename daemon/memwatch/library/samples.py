"""Samples of this process and its machine, and a thread that takes them at intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec import Struct

from memwatch.library.frameworks import total_stats
from memwatch.library.host import host, rss_bytes
from memwatch.library.never_raise import never_raise
from memwatch.model import Absent, Bytes


class Sample(Struct, frozen=True):
    """One sample. `pool_used_bytes` and `pool_available_bytes`: System RAM; the others: this process."""

    unix: float
    pool_used_bytes: Bytes
    pool_available_bytes: Bytes
    rss_bytes: Bytes
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    allocations: int | Absent


def take() -> Sample:
    ram, stats = host.ram(), total_stats()
    missing = Absent.NOT_SUPPORTED
    return Sample(
        unix=time.time(),
        pool_used_bytes=ram if isinstance(ram, Absent) else ram.total_bytes - ram.available_bytes,
        pool_available_bytes=ram if isinstance(ram, Absent) else ram.available_bytes,
        rss_bytes=rss_bytes(),
        allocated_bytes=missing if stats is None else stats.allocated_bytes,
        reserved_bytes=missing if stats is None else stats.reserved_bytes,
        allocations=missing if stats is None else stats.allocations,
    )


class PeriodicSampler:
    """A thread that calls `callback` with a sample at intervals."""

    def __init__(self, callback: Callable[[Sample], None], interval_seconds: float) -> None:
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
        self._callback(take())


def greater(one: Bytes, other: Bytes) -> Bytes:
    """Return the greater of two values, or the known one if only one is known."""
    if isinstance(one, Absent):
        return other
    return one if isinstance(other, Absent) else max(one, other)


def difference(after: Bytes, before: Bytes) -> Bytes:
    if isinstance(after, Absent):
        return after
    return before if isinstance(before, Absent) else after - before


class Peak(Struct, frozen=True):
    """Maxima of the samples of one stage."""

    stage: str
    samples: int = 0
    pool_used_bytes: Bytes = Absent.NOT_AVAILABLE
    rss_bytes: Bytes = Absent.NOT_AVAILABLE
    allocated_bytes: Bytes = Absent.NOT_AVAILABLE
    reserved_bytes: Bytes = Absent.NOT_AVAILABLE

    def with_sample(self, sample: Sample) -> Peak:
        return Peak(
            self.stage,
            self.samples + 1,
            greater(self.pool_used_bytes, sample.pool_used_bytes),
            greater(self.rss_bytes, sample.rss_bytes),
            greater(self.allocated_bytes, sample.allocated_bytes),
            greater(self.reserved_bytes, sample.reserved_bytes),
        )
