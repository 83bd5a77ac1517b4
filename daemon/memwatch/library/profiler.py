"""Memory profiler of a program: samples taken in a thread, peaks per stage, and export to files."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from msgspec import Struct
from msgspec.structs import replace

from memwatch.library import profile_export as profile_files
from memwatch.library.memory_pool import greater
from memwatch.library.never_raise import never_raise
from memwatch.library.peak_counters import PeakWatch, counters
from memwatch.library.reporter import reporter
from memwatch.library.samples import Peak, PeriodicSampler, Sample
from memwatch.planning.sizes import InvalidInputError

MAX_SAMPLES = 100_000
MAX_STAGES = 1000
FIRST_STAGE = "start"
# All stages beyond the maximum: their peaks are those of one.
OTHER_STAGES = "other stages"


class Report(Struct, frozen=True):
    """Result of a profile. `peaks`: in the order of the stages' start. `samples`: the newest, with their stages."""

    interval_seconds: float
    peaks: tuple[Peak, ...]
    samples: tuple[tuple[str, Sample], ...]

    def __repr__(self) -> str:
        kept = f"{len(self.samples)} samples"
        return f"Report(interval_seconds={self.interval_seconds!r}, peaks={self.peaks!r}, samples=<{kept}>)"


class MemoryProfiler:
    """Memory profiler. Use as `with MemoryProfiler() as profiler: … profiler.stage("decode")`.

    Then call `report()` or `save("memory.html")`. Only the newest 100,000 samples are kept, but all stages' peaks.
    `exact`: reset the counters of allocators and of the kernel at the start of each stage, as `track` does.
    """

    def __init__(self, interval: float = 0.5, *, exact: bool = True) -> None:
        if not 0.01 <= interval <= 3600:
            raise InvalidInputError(
                f"interval is {interval!r}, which is not from 0.01 to 3600 seconds; for example 0.5"
            )
        self._interval = interval
        self._samples: deque[tuple[str, Sample]] = deque(maxlen=MAX_SAMPLES)
        self._peaks: dict[str, Peak] = {FIRST_STAGE: Peak(FIRST_STAGE)}
        self._stage = FIRST_STAGE
        self._lock = threading.RLock()
        self._follower: PeriodicSampler | None = None
        self._exact = exact
        self._watch: PeakWatch | None = None

    @never_raise(None)
    def start(self) -> None:
        """Start or resume sampling."""
        if self._follower is None:
            self._open_watch()
            self._follower = PeriodicSampler(self._look, self._interval)
            self._follower.start()
            reporter.renew()

    @never_raise(None)
    def stop(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None
            self._close_watch()

    @never_raise(None)
    def stage(self, name: str) -> None:
        """Begin a stage. One last sample is taken for the previous stage."""
        ended = self._watch
        if ended is None:
            sample = counters.observe()
        else:
            self._watch, sample = counters.follow(ended)
        self._see(sample)
        with self._lock:
            if ended is not None:
                self._peaks[self._stage] = count_peaks(self._peaks[self._stage], ended)
            if name not in self._peaks and len(self._peaks) >= MAX_STAGES:
                name = OTHER_STAGES
            self._stage = name
            self._peaks.setdefault(name, Peak(name))
        self._see(sample)
        reporter.mark(f"[{name}]")

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Use a stage for a block, then return to the previous stage."""
        before = self._stage
        self.stage(name)
        try:
            yield
        finally:
            self.stage(before)

    def report(self) -> Report:
        with self._lock:
            peaks, watch = dict(self._peaks), self._watch  # another thread may stop the profiler meanwhile
            if watch is not None:
                peaks[self._stage] = count_peaks(peaks[self._stage], watch)
            found = tuple(peak for peak in peaks.values() if peak.samples)
            return Report(self._interval, found, tuple(self._samples))

    def peak(self, stage: str) -> Peak | None:
        """Return the peaks of one stage so far, None if it has not begun."""
        self._look()
        with self._lock:
            found, watch = self._peaks.get(stage), self._watch
            if found is not None and watch is not None and stage == self._stage:
                return count_peaks(found, watch)
            return found

    def save(self, path: str | Path) -> Path:
        """Save as .json, .csv, or .html with a plot. Raises InvalidInputError for other suffixes, and OSError."""
        target = Path(path)
        write = profile_files.WRITERS.get(target.suffix.lower())
        if write is None:
            raise InvalidInputError(
                f'path is "{path}", which does not end in .json, .csv or .html; for example memory.html'
            )
        report = self.report()
        target.write_text(write(report.interval_seconds, report.peaks, report.samples), encoding="utf-8")
        return target

    def __enter__(self) -> MemoryProfiler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _look(self) -> None:
        self._see(counters.observe())

    def _open_watch(self) -> None:
        self._watch, sample = counters.open(self._exact)
        self._see(sample)

    def _close_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is None:
            self._look()
            return
        self._see(counters.close(watch))
        with self._lock:
            self._peaks[self._stage] = count_peaks(self._peaks[self._stage], watch)

    def _see(self, sample: Sample) -> None:
        with self._lock:
            self._samples.append((self._stage, sample))
            self._peaks[self._stage] = self._peaks[self._stage].with_sample(sample)


def count_peaks(peak: Peak, watch: PeakWatch) -> Peak:
    """Add what counters kept during one visit of a stage. A peak is exact if it was in each visit."""
    allocated, reserved = watch.allocators
    marks = {"rss_bytes": watch.process, "allocated_bytes": allocated, "reserved_bytes": reserved}
    figures = {name: greater(getattr(peak, name), mark.peak_bytes) for name, mark in marks.items()}
    exact = {name for name, mark in marks.items() if mark.exact} & set(peak.exact if peak.visits else marks)
    return replace(peak, **figures, visits=peak.visits + 1, exact=tuple(sorted(exact)))
