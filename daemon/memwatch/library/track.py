"""Memory of a block or function: its peak, the difference at its end, and its allocations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from msgspec import Struct

from memwatch.library.never_raise import never_raise
from memwatch.library.samples import Sample, difference, greater, take
from memwatch.model import Absent, Bytes

P = ParamSpec("P")
R = TypeVar("R")
INTERVAL_SECONDS = 0.05


class UsageDelta(Struct):
    """One value over a block: at its start, its peak, and the difference at its end."""

    before_bytes: Bytes = Absent.NOT_AVAILABLE
    peak_bytes: Bytes = Absent.NOT_AVAILABLE
    delta_bytes: Bytes = Absent.NOT_AVAILABLE

    def see(self, figure: Bytes) -> None:
        self.peak_bytes = greater(self.peak_bytes, figure)
        self.delta_bytes = difference(figure, self.before_bytes)

    def begin(self, figure: Bytes) -> None:
        self.before_bytes = self.peak_bytes = figure


class MemoryStats:
    """Memory of one block, complete at its end.

    `pool`: System RAM; `process`: resident set; `allocator` and `device`: bytes that the frameworks' allocators of
    this process allocated and reserved.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.pool, self.process, self.allocator, self.device = (
            UsageDelta(),
            UsageDelta(),
            UsageDelta(),
            UsageDelta(),
        )
        self.allocations: int | Absent = Absent.NOT_SUPPORTED
        self.seconds = 0.0
        self._first: Sample | None = None

    @property
    def peak_bytes(self) -> Bytes:
        """Peak of the allocators' allocated bytes, or of the resident set without allocators."""
        return self._own.peak_bytes

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
            self.allocations = difference(sample.allocations, self._first.allocations)
            self.seconds = sample.unix - self._first.unix

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
        return f"MemoryStats({self.name!r}, peak_bytes={self.peak_bytes}, delta_bytes={self.delta_bytes})"


class _TrackThread:
    """Sampling thread for all open blocks. The first block starts it; it sleeps while no block is open."""

    def __init__(self) -> None:
        self._open: list[MemoryStats] = []
        self._lock = threading.Lock()
        self._any = threading.Event()
        self._thread: threading.Thread | None = None

    @never_raise(None)
    def begin(self, stats: MemoryStats) -> None:
        stats.begin(take())
        with self._lock:
            self._open.append(stats)
            self._any.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="memwatch-track", daemon=True)
                self._thread.start()

    @never_raise(None)
    def end(self, stats: MemoryStats) -> None:
        with self._lock:
            if stats in self._open:
                self._open.remove(stats)
            if not self._open:
                self._any.clear()
        stats.see(take())

    def after_fork(self) -> None:
        """Reset in the child, which has no thread. The parent's lock may have been held."""
        self.__init__()  # type: ignore[misc]

    def _run(self) -> None:
        while True:
            self._any.wait()
            time.sleep(INTERVAL_SECONDS)
            self._look()

    @never_raise(None)
    def _look(self) -> None:
        sample = take()
        with self._lock:
            for stats in self._open:
                stats.see(sample)


_track_thread = _TrackThread()
os.register_at_fork(after_in_child=_track_thread.after_fork)


class track:
    """Memory tracker for `with track("load") as stats:` or `@track()`. Samples every 50 ms, at start and at end.

    As a decorator, it stores the statistics of the last call in `function.stats`.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._entered: list[MemoryStats] = []

    def __enter__(self) -> MemoryStats:
        stats = MemoryStats(self._name)
        self._entered.append(stats)
        _track_thread.begin(stats)
        return stats

    def __exit__(self, *_error: object) -> None:
        _track_thread.end(self._entered.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        name = self._name or function.__qualname__

        @wraps(function)
        def tracked(*args: P.args, **kwargs: P.kwargs) -> R:
            with track(name) as stats:
                tracked.stats = stats  # type: ignore[attr-defined]
                return function(*args, **kwargs)

        return tracked
