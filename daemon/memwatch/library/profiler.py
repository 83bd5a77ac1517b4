"""Memory profiler of a program: samples taken in a thread, peaks per stage, and export as JSON, CSV or a page."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import TracebackType

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Absent, Bytes, known_or
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.units import size
from memwatch.library.memory_pool import describe_bytes, greater
from memwatch.library.peaks import Peak, PeakWatch, PeriodicSampler, Sample, counters
from memwatch.library.program_safety import never_raise
from memwatch.library.reporter import reporter
from memwatch.planning.arguments import InvalidInputError, check_flag, check_interval, check_path

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
        self._interval = check_interval(interval)
        self._samples: deque[tuple[str, Sample]] = deque(maxlen=MAX_SAMPLES)
        self._peaks: dict[str, Peak] = {FIRST_STAGE: Peak(FIRST_STAGE)}
        self._stage = FIRST_STAGE
        self._lock = threading.RLock()
        self._follower: PeriodicSampler | None = None
        self._exact = check_flag(exact, "exact", example=False)
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
        target = check_path(path, "path", "memory.html")
        write = WRITERS.get(target.suffix.lower())
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


Rows = Sequence[tuple[str, Sample]]
LINES = (
    ("pool_used_bytes", "System RAM used", "#8899aa"),
    ("rss_bytes", "resident set", "#2266cc"),
    ("reserved_bytes", "reserved by allocators", "#dd9922"),
    ("allocated_bytes", "allocated", "#cc3333"),
)
WIDTH, HEIGHT, MAX_POINTS = 1000, 320, 2000


def as_json(interval: float, peaks: Sequence[Peak], samples: Rows) -> str:
    return json.dumps(
        {
            "schema": 1,
            "interval_seconds": interval,
            "peaks": RECORDS.encode_all(peaks),
            "samples": [{"stage": stage, **RECORDS.encode(sample)} for stage, sample in samples],
        },
        indent=1,
    )


def as_csv(_interval: float, _peaks: Sequence[Peak], samples: Rows) -> str:
    """Render CSV. Unknown values are empty. A stage that a spreadsheet would run as a formula gets a quote.

    Python before 3.13 writes a carriage return without quotes, and readers begin a row there.
    """
    names = Sample.__struct_fields__
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["stage", *names])
    for stage, sample in samples:
        figures = [getattr(sample, name) for name in names]
        safe = f"'{stage}" if stage[:1] in "=+-@\t\r" and stage else stage
        safe = safe.replace("\r", "\n")
        writer.writerow([safe, *(known_or(figure, "") for figure in figures)])
    return output.getvalue()


def as_html(interval: float, peaks: Sequence[Peak], samples: Rows) -> str:
    rows = "".join(_row(peak) for peak in peaks)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Memory profile</title>"
        "<style>body{font:15px system-ui;margin:2rem;max-width:70rem}td,th{padding:.2rem .8rem;text-align:right}"
        "td:first-child,th:first-child{text-align:left}svg{width:100%;border:1px solid #ccc}"
        ".key{display:inline-block;width:1em;height:.7em}</style>"
        f"<h1>Memory profile</h1><p>{len(samples)} samples, every {interval:g} s</p>{_plot(samples)}"
        "<h2>Peak of each stage</h2><table><tr><th>stage<th>samples<th>allocated<th>reserved<th>resident set"
        f"<th>System RAM used</tr>{rows}</table><p>~ greatest of the samples; the true peak may be higher.</html>\n"
    )


def _row(peak: Peak) -> str:
    names = ("allocated_bytes", "reserved_bytes", "rss_bytes", "pool_used_bytes")
    aggregates = "".join(f"<td>{_peak_words(getattr(peak, name), name in peak.exact)}" for name in names)
    return f"<tr><td>{escape(peak.stage)}<td>{peak.samples}{aggregates}</tr>"


def _peak_words(figure: Bytes, exact: bool) -> str:
    return describe_bytes(figure) if exact or isinstance(figure, Absent) else f"~ {describe_bytes(figure)}"


def _plot(samples: Rows) -> str:
    """Render one line per known value. Above `MAX_POINTS` samples, each point is the maximum of several."""
    step = -(-len(samples) // MAX_POINTS) or 1
    pieces = [[sample for _, sample in samples[at : at + step]] for at in range(0, len(samples), step)]
    columns = {name: [_greatest(piece, name) for piece in pieces] for name, _, _ in LINES}
    top = max((one for column in columns.values() for one in column if one is not None), default=0) or 1
    lines, keys = "", ""
    for name, words, colour in LINES:
        points = " ".join(
            f"{WIDTH * at / max(1, len(pieces) - 1):.1f},{HEIGHT * (1 - value / top):.1f}"
            for at, value in enumerate(columns[name])
            if value is not None
        )
        if points:
            lines += f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'
            keys += f' <span class=key style="background:{colour}"></span> {words}'
    svg = f'<svg viewBox="0 -6 {WIDTH} {HEIGHT + 12}" role="img" aria-label="Memory over time">{lines}</svg>'
    return f"<p>maximum of the plot: {size(top)};{keys}</p>{svg}"


def _greatest(piece: Sequence[Sample], name: str) -> int | None:
    known = [figure for figure in (getattr(sample, name) for sample in piece) if isinstance(figure, int)]
    return max(known, default=None)


WRITERS: dict[str, Callable[[float, Sequence[Peak], Rows], str]] = {
    ".json": as_json,
    ".csv": as_csv,
    ".html": as_html,
}
