"""Memory profiler of a program: samples taken in a thread, peaks per stage, and export to files."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from memwatch.library import profile_export as profile_files
from memwatch.library.never_raise import never_raise
from memwatch.library.reporter import reporter
from memwatch.library.samples import Peak, PeriodicSampler, Sample, take
from memwatch.planning.sizes import InvalidInputError

MAX_SAMPLES = 100_000
MAX_STAGES = 1000
FIRST_STAGE = "start"


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
    """

    def __init__(self, interval: float = 0.5) -> None:
        if not 0.01 <= interval <= 3600:
            raise InvalidInputError(
                f"interval is {interval!r}, which is not from 0.01 to 3600 seconds; for example 0.5"
            )
        self._interval = interval
        self._samples: deque[tuple[str, Sample]] = deque(maxlen=MAX_SAMPLES)
        self._peaks: dict[str, Peak] = {FIRST_STAGE: Peak(FIRST_STAGE)}
        self._stage = FIRST_STAGE
        self._lock = threading.Lock()
        self._follower: PeriodicSampler | None = None

    @never_raise(None)
    def start(self) -> None:
        """Start or resume sampling."""
        if self._follower is None:
            self._look()
            self._follower = PeriodicSampler(self._see, self._interval)
            self._follower.start()
            reporter.renew()

    @never_raise(None)
    def stop(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None
            self._look()

    @never_raise(None)
    def stage(self, name: str) -> None:
        """Begin a stage. One last sample is taken for the previous stage."""
        self._look()
        with self._lock:
            if name not in self._peaks and len(self._peaks) >= MAX_STAGES:
                return
            self._stage = name
            self._peaks.setdefault(name, Peak(name))
        self._look()
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
            peaks = tuple(peak for peak in self._peaks.values() if peak.samples)
            return Report(self._interval, peaks, tuple(self._samples))

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
        self._see(take())

    def _see(self, sample: Sample) -> None:
        with self._lock:
            self._samples.append((self._stage, sample))
            self._peaks[self._stage] = self._peaks[self._stage].with_sample(sample)
