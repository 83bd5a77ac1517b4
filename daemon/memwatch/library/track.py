"""Memory of a block or function: its peak, the difference at its end, and its allocations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from msgspec import Struct

from memwatch.core.model import Absent, Bytes
from memwatch.library.frameworks import TOTALS
from memwatch.library.memory_pool import greater
from memwatch.library.peaks import PeakWatch, Sample, Watermark, counters, difference
from memwatch.library.program_safety import never_raise
from memwatch.planning.arguments import check_flag, check_text

P = ParamSpec("P")
R = TypeVar("R")
INTERVAL_SECONDS = 0.05


class UsageDelta(Struct):
    """One value over a block: at its start, its peak, and the difference at its end.

    `exact`: a counter kept the peak. Otherwise it is the greatest of the samples, and the true peak may be higher.
    """

    before_bytes: Bytes = Absent.NOT_AVAILABLE
    peak_bytes: Bytes = Absent.NOT_AVAILABLE
    delta_bytes: Bytes = Absent.NOT_AVAILABLE
    exact: bool = False

    def see(self, figure: Bytes) -> None:
        self.peak_bytes = greater(self.peak_bytes, figure)
        self.delta_bytes = difference(figure, self.before_bytes)

    def begin(self, figure: Bytes) -> None:
        self.before_bytes = self.peak_bytes = figure

    def count(self, mark: Watermark) -> None:
        """Take the peak that a counter kept."""
        self.peak_bytes = greater(self.peak_bytes, mark.peak_bytes)
        self.exact = mark.exact


class PoolPeak(Struct, frozen=True):
    """Peaks that the allocator of one pool counted during a block. `exact`: False if they may have been higher."""

    allocated_bytes: Bytes
    reserved_bytes: Bytes
    exact: bool


class MemoryStats:
    """Memory of one block, complete at its end.

    `pool`: System RAM; `process`: resident set; `allocator` and `device`: bytes that the frameworks' allocators of
    this process allocated and reserved. `pools`: peaks of each allocator that counts them, by "PyTorch cuda:0".
    `allocations` and `frees` count those of the block, `total_allocated_bytes` and `total_freed_bytes` add them up:
    absent without an allocator that counts them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pool: UsageDelta = UsageDelta()
        self.process: UsageDelta = UsageDelta()
        self.allocator: UsageDelta = UsageDelta()
        self.device: UsageDelta = UsageDelta()
        self.allocations: int | Absent = Absent.NOT_SUPPORTED
        self.frees: int | Absent = Absent.NOT_SUPPORTED
        self.total_allocated_bytes: Bytes = Absent.NOT_SUPPORTED
        self.total_freed_bytes: Bytes = Absent.NOT_SUPPORTED
        self.pools: dict[str, PoolPeak] = {}
        self.seconds: float = 0.0
        self._first: Sample | None = None

    @property
    def peak_bytes(self) -> Bytes:
        """Peak of the allocators' allocated bytes, or of the resident set without allocators."""
        return self._own.peak_bytes

    @property
    def exact(self) -> bool:
        """True if a counter kept `peak_bytes`, False if it is the greatest of the samples."""
        return self._own.exact

    @property
    def delta_bytes(self) -> Bytes:
        return self._own.delta_bytes

    def begin(self, sample: Sample) -> None:
        self._first = sample
        for view, figure in self._figures(sample):
            view.begin(figure)

    def see(self, sample: Sample) -> None:
        for view, figure in self._figures(sample):
            view.see(figure)
        if self._first is not None:
            if sample.allocated_bytes is not Absent.NOT_SUPPORTED:  # there is an allocator
                self._subtract(self._first, sample)
            self.seconds = sample.unix - self._first.unix

    def _subtract(self, first: Sample, sample: Sample) -> None:
        for name in TOTALS:
            setattr(self, name, difference(getattr(sample, name), getattr(first, name)))

    def count(self, watch: PeakWatch) -> None:
        """Take the peaks that counters kept."""
        allocated, reserved = watch.allocators
        for view, mark in ((self.process, watch.process), (self.allocator, allocated), (self.device, reserved)):
            view.count(mark)
        self.pools = {
            name: PoolPeak(one.peak_bytes, other.peak_bytes, one.exact)
            for name, (one, other) in watch.pools.items()
            if isinstance(one.peak_bytes, int)
        }

    @property
    def _own(self) -> UsageDelta:
        return self.process if isinstance(self.allocator.peak_bytes, Absent) else self.allocator

    def _figures(self, sample: Sample) -> tuple[tuple[UsageDelta, Bytes], ...]:
        return (
            (self.pool, sample.pool_used_bytes),
            (self.process, sample.rss_bytes),
            (self.allocator, sample.allocated_bytes),
            (self.device, sample.reserved_bytes),
        )

    def __repr__(self) -> str:
        known = f"peak_bytes={self.peak_bytes}, delta_bytes={self.delta_bytes}, exact={self.exact}"
        return f"MemoryStats({self.name!r}, {known})"


class _TrackThread:
    """Sampling thread for all open blocks. The first block starts it; it sleeps while no block is open."""

    def __init__(self) -> None:
        self._open: list[tuple[MemoryStats, PeakWatch]] = []
        self._lock = threading.RLock()
        # Without a lock, unlike threading.Event: a signal handler may begin a block within a call.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @never_raise(None)
    def begin(self, stats: MemoryStats, exact: bool) -> None:
        watch, sample = counters.open(exact)
        stats.begin(sample)
        with self._lock:
            self._open.append((stats, watch))
            if self._wake.empty():
                self._wake.put(None)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="memwatch-track", daemon=True)
                self._thread.start()

    @never_raise(None)
    def end(self, stats: MemoryStats) -> None:
        with self._lock:
            watch = next((watch for one, watch in self._open if one is stats), None)
            self._open = [pair for pair in self._open if pair[0] is not stats]
        if watch is None:
            stats.see(counters.observe())  # the block began before a fork, or its begin failed
            return
        stats.see(counters.close(watch))
        stats.count(watch)

    def after_fork(self) -> None:
        """Reset in the child, which has no thread. The parent's lock may have been held."""
        self.__init__()  # type: ignore[misc]

    def _run(self) -> None:
        while True:
            self._wake.get()
            while self._open:
                time.sleep(INTERVAL_SECONDS)
                self._look()

    @never_raise(None)
    def _look(self) -> None:
        sample = counters.observe()
        with self._lock:
            for stats, _ in self._open:
                stats.see(sample)


_track_thread = _TrackThread()
os.register_at_fork(after_in_child=_track_thread.after_fork)


class track:
    """Memory tracker for `with track("load") as stats:` or `@track()`, with exact peaks where a counter keeps them.

    `exact` resets these counters (VmHWM, `torch.cuda.max_memory_allocated`, MLX) at the start of the block;
    `PoolStats.peak_bytes` keeps the greater value. CuPy gets a memory hook for the time of the block. With
    `exact=False` counters are only read: a peak is exact if its counter rose. Other values are the greatest of
    samples every 50 ms, at start and at end. As a decorator, it stores the statistics of the last call in
    `function.stats`.
    """

    def __init__(self, name: str = "", *, exact: bool = True) -> None:
        self._name = check_text(name, "name", "forward")
        self._exact = check_flag(exact, "exact", example=False)
        self._entered: list[MemoryStats] = []

    def __enter__(self) -> MemoryStats:
        stats = MemoryStats(self._name)
        self._entered.append(stats)
        _track_thread.begin(stats, self._exact)
        return stats

    def __exit__(self, *_error: object) -> None:
        _track_thread.end(self._entered.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        name = self._name or function.__qualname__

        @wraps(function)
        def tracked(*args: P.args, **kwargs: P.kwargs) -> R:
            with track(name, exact=self._exact) as stats:
                tracked.stats = stats  # type: ignore[attr-defined]
                return function(*args, **kwargs)

        return tracked
