"""Stages of a training run, their peaks and an autopsy, for the callbacks of training frameworks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.units import size
from memwatch.library.autopsy import autopsy
from memwatch.library.memory_pool import greater
from memwatch.library.never_raise import log, never_raise
from memwatch.library.oom_errors import is_out_of_memory
from memwatch.library.profiler import MemoryProfiler
from memwatch.library.reporter import reporter
from memwatch.library.samples import Peak


class TrainingStages:
    """Profiler of a training run. Each stage and its peak are marks at the daemon and lines of the log."""

    def __init__(self, interval: float = 0.5, exact: bool = True, folder: str | Path | None = None) -> None:
        self.profiler: MemoryProfiler = MemoryProfiler(interval, exact=exact)
        self._folder = folder
        self._stages: list[str] = []
        self._inside: dict[str, Peak] = {}
        self._reported_at = time.monotonic()
        self._hook = ExceptionHook(self)

    @never_raise(None)
    def start(self) -> None:
        """Start sampling, and examine an out-of-memory error that ends the program."""
        self.profiler.start()
        self._hook.install()

    @never_raise(None)
    def enter(self, name: str) -> None:
        """Begin a stage inside the current one."""
        self.start()
        self._stages.append(name)
        self.profiler.stage(name)

    @never_raise(None)
    def leave(self) -> None:
        """End the innermost stage, report its peak, and return to the one around it."""
        self._end_innermost()
        if self._stages:
            self.profiler.stage(self._stages[-1])

    @property
    def current(self) -> str | None:
        return self._stages[-1] if self._stages else None

    @never_raise(None)
    def report_seldom(self, title: str, seconds: float) -> None:
        """Report the innermost stage so far, if the last such report is this long ago."""
        now = time.monotonic()
        if self._stages and now - self._reported_at >= seconds:
            self._reported_at = now
            report(title, self._peak(self._stages[-1]))

    @never_raise(None)
    def finish(self) -> None:
        """End all stages and stop sampling."""
        self._hook.remove()
        while self._stages:
            self._end_innermost()
        self.profiler.stop()

    @never_raise(None)
    def fail(self, error: BaseException) -> None:
        """Examine an out-of-memory error. Other errors only end the stages."""
        if is_out_of_memory(error):
            autopsy(error, self._folder)
        self.finish()

    def _end_innermost(self) -> None:
        if not self._stages:
            return
        name = self._stages.pop()
        peak = self._peak(name)
        self._inside.pop(name, None)
        report(name, peak)
        if self._stages and peak is not None:
            outer = self._stages[-1]
            self._inside[outer] = merge(self._inside.get(outer), peak)

    def _peak(self, name: str) -> Peak | None:
        """Return the peak of a stage with all stages inside it."""
        peak = self.profiler.peak(name)
        return peak if peak is None else merge(self._inside.get(name), peak)


class ExceptionHook:
    """Part of `sys.excepthook` while a run is under way, since most frameworks have no callback for errors."""

    def __init__(self, stages: TrainingStages) -> None:
        self._stages = stages
        self._before = sys.excepthook
        self._installed = False

    def install(self) -> None:
        if not self._installed:
            self._before, self._installed = sys.excepthook, True
            sys.excepthook = self.call

    def remove(self) -> None:
        """Restore the hook, unless another one was set since: that one still calls this one."""
        self._installed = False
        if sys.excepthook == self.call:
            sys.excepthook = self._before

    def call(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._installed:
            self._stages.fail(error)
        self._before(kind, error, trace)


def report(title: str, peak: Peak | None) -> None:
    if peak is not None:
        line = f"[{title}] {peak_words(peak)}"
        log.info("%s", line)
        reporter.mark(line)


def merge(one: Peak | None, other: Peak) -> Peak:
    """Return the greater of two peaks, exact where both are."""
    if one is None:
        return other
    names = ("pool_used_bytes", "rss_bytes", "allocated_bytes", "reserved_bytes")
    figures = {name: greater(getattr(one, name), getattr(other, name)) for name in names}
    return replace(other, **figures, exact=tuple(name for name in one.exact if name in other.exact))


def peak_words(peak: Peak) -> str:
    name = "rss_bytes" if isinstance(peak.allocated_bytes, Absent) else "allocated_bytes"
    words = "resident" if name == "rss_bytes" else "allocated"
    figure = getattr(peak, name)
    if isinstance(figure, Absent):
        return "peak not known"
    return f"peak: {size(figure)} {words} ({'exact' if name in peak.exact else 'sampled'})"
