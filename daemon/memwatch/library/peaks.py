"""Peaks that allocators and the kernel count themselves, for several open blocks at once.

A sample misses memory that is allocated and freed between two of them. A counter does not, but it has one start for
the whole process. So every reset first hands the counter's value to all open blocks. A counter that cannot be reset
is exact for a block only if it rose during the block.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.model import Absent, Bytes
from memwatch.library.cupy_peaks import cupy_peaks
from memwatch.library.frameworks import TOTALS, pools, read_counters, sum_stats
from memwatch.library.host import ProcessPeak, host, rss_bytes
from memwatch.library.memory_pool import CachingPool, MemoryPool, PoolStats, greater
from memwatch.library.program_safety import never_raise

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


Reset = Callable[[], bool]
# The kernel sums pages of several CPUs with a delay, so that VmHWM may also fall a little by itself.
RSS_SLACK_BYTES = 16 << 20


class Watermark(Struct):
    """Peak of one counter during a block. `before`: its value at the start, None if it counts from the start on."""

    before: Bytes | None
    peak_bytes: Bytes = Absent.NOT_AVAILABLE
    bound: int = 0
    interrupted: bool = False

    def see(self, value: Bytes) -> None:
        if isinstance(value, Absent) or isinstance(self.before, Absent):
            return
        if self.before is None or value > self.before:
            self.peak_bytes = greater(self.peak_bytes, value)
        else:
            self.bound = max(self.bound, value)

    @property
    def exact(self) -> bool:
        """False if the counter could not tell: the true peak may be above `peak_bytes`."""
        known = isinstance(self.peak_bytes, int) and self.peak_bytes >= self.bound
        return known and not self.interrupted


class Source(Struct):
    """A counter, or two of one pool, read now. `starts_empty`: first seen inside a block, it counts only that.

    `is_certain`: False if it may have missed a peak since its reset.
    """

    name: str
    values: tuple[Bytes, ...]
    reset: Reset
    starts_empty: bool
    slack_bytes: int = 0
    is_certain: bool = True


class PeakWatch(Struct):
    """Watermarks of one block, by source. `thread`: the one that CuPy's hook is in, 0 without."""

    exact: bool
    thread: int = 0
    marks: dict[str, list[Watermark]] = field(default_factory=dict)

    @property
    def process(self) -> Watermark:
        return self.marks.get(ProcessPeak.name, [Watermark(Absent.NOT_AVAILABLE)])[0]

    @property
    def pools(self) -> dict[str, list[Watermark]]:
        return {name: marks for name, marks in self.marks.items() if name != ProcessPeak.name}

    @property
    def allocators(self) -> list[Watermark]:
        """Allocated and reserved bytes. Peaks of several pools at different times have no exact sum."""
        found = list(self.pools.values())
        return found[0] if len(found) == 1 else [Watermark(Absent.NOT_AVAILABLE), Watermark(Absent.NOT_AVAILABLE)]


class PeakCounters:
    """Counters of this process and the blocks that are open. Thread-safe."""

    def __init__(self) -> None:
        self._open: list[PeakWatch] = []
        self._last: dict[str, tuple[Bytes, ...]] = {}
        self._lock = threading.RLock()  # a signal handler may open a block within a call
        self._process = ProcessPeak()

    def open(self, exact: bool) -> tuple[PeakWatch, Sample]:
        """Start a block. `exact`: reset the counters that can be."""
        with self._lock:
            thread = cupy_peaks.acquire() if exact else 0
            # Without another open block nothing needs the value before the reset, which may take 15 µs.
            sources, sample = self._read(bool(self._open) or not (exact and self._process.can_reset))
            return self._begin(PeakWatch(exact, thread), sources), sample

    def follow(self, watch: PeakWatch) -> tuple[PeakWatch, Sample]:
        """End a block and start the next one, with one reading."""
        with self._lock:
            thread = cupy_peaks.acquire() if watch.exact else 0
            sources, sample = self._read()
            self._open = [one for one in self._open if one is not watch]
            cupy_peaks.release(watch.thread)
            return self._begin(PeakWatch(watch.exact, thread), sources), sample

    def observe(self) -> Sample:
        """Take a sample, and hand the counters' values to all open blocks."""
        with self._lock:
            return self._read()[1]

    def close(self, watch: PeakWatch) -> Sample:
        with self._lock:
            sample = self._read()[1]
            self._open = [one for one in self._open if one is not watch]
            cupy_peaks.release(watch.thread)
        return sample

    def _begin(self, watch: PeakWatch, sources: Iterable[Source]) -> PeakWatch:
        for source in sources:
            if watch.exact and source.reset():
                self._restart(source.name)
                watch.marks[source.name] = [Watermark(None) for _ in source.values or ("",)]
            else:
                values = source.values if source.values else self._process.read()
                watch.marks[source.name] = [Watermark(value) for value in values]
        self._open.append(watch)
        return watch

    def after_fork(self) -> None:
        """Reset in the child: the parent's lock may have been held, and the child has its own counters."""
        self.__init__()  # type: ignore[misc]
        cupy_peaks.after_fork()

    def _read(self, with_process: bool = True) -> tuple[list[Source], Sample]:
        found = [(pool, read_counters(pool)) for pool in pools()]
        own = self._process.read() if with_process else ()
        sources = [
            Source(ProcessPeak.name, own, self._process.reset, False, RSS_SLACK_BYTES),
            *(build_source(pool, stats) for pool, stats in found),
        ]
        for source in sources:
            self._feed(source)
        return sources, build_sample([stats for _, stats in found])

    def _feed(self, source: Source) -> None:
        if not source.values:
            return
        # A counter only falls if the program itself resets it, which may hide a peak.
        last = self._last.get(source.name, source.values)
        fell = any(
            isinstance(now, int) and isinstance(before, int) and now < before - source.slack_bytes
            for now, before in zip(source.values, last, strict=True)
        )
        self._last[source.name] = source.values
        for watch in self._open:
            is_new = source.name not in watch.marks
            if is_new:
                empty = source.starts_empty
                starts = [None if empty and isinstance(value, int) else value for value in source.values]
                watch.marks[source.name] = [Watermark(start) for start in starts]
            for mark, value in zip(watch.marks[source.name], source.values, strict=True):
                if not source.is_certain:
                    mark.interrupted = True
                if fell and not is_new:
                    mark.before, mark.interrupted = None, True
                mark.see(value)

    def _restart(self, name: str) -> None:
        self._last.pop(name, None)
        for watch in self._open:
            for mark in watch.marks.get(name, ()):
                mark.before = None


def build_source(pool: MemoryPool, stats: PoolStats) -> Source:
    # A framework's pool is found with its first use; a program may register one at any time.
    of_framework = isinstance(pool, CachingPool)
    reset = pool.reset_peak if isinstance(pool, CachingPool) else lambda: False
    values = (stats.peak_bytes, stats.peak_reserved_bytes)
    is_certain = not isinstance(pool, CachingPool) or pool.is_peak_certain()
    return Source(f"{pool.backend_name} {pool.device}", values, reset, of_framework, is_certain=is_certain)


counters: PeakCounters = PeakCounters()
os.register_at_fork(after_in_child=counters.after_fork)
