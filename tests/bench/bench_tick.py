"""Measure where the cost of a tick at rest goes: its parts, and the functions that it calls."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType

from sheet import Column, Sheet

import memwatch
import memwatch_monitor
import memwatch_web
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Host
from memwatch.core.linux.files import Roots
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.loop import Monitor
from support.fakes import FakeClock
from support.monitors import create_monitor
from support.paths import MACHINES

OURS = {
    str(Path(str(package.__file__)).parent.parent) + "/" for package in (memwatch, memwatch_monitor, memwatch_web)
}
# Until trends are full and every collector has had its turn.
WARM_TICKS, COUNTED_TICKS = 120, 60
SAMPLE_SECONDS, CPU_SECONDS = 0.001, 6.0
MIN_PERCENT = 0.5
PLAIN = "workstation"
# The first pattern that a file of the innermost frames matches names the part of a sample.
PARTS: Sequence[tuple[str, str]] = (
    (r"memwatch/core/linux/files\.py", "reads of files"),
    (r"memwatch/core/collectors/(?!base)(\w+)\.py", "collector {}"),
    (r"memwatch/core/linux/(\w+)\.py", "parsing: {}"),
    (r"memwatch/core/processes/", "processes"),
    (r"memwatch/core/accounting/", "accounting"),
    (r"memwatch/core/pressure/", "pressure"),
    (r"memwatch_monitor/(history|history_recorder)", "store: history in memory"),
    (r"memwatch_monitor/alert", "alerts"),
    (r"memwatch_monitor/incident", "incidents"),
    (r"memwatch_monitor/(loop|pacing|feature)\.py", "loop, pacing and calls of features"),
    (r"memwatch_monitor/", "other features"),
    (r"memwatch/core/reading/sampler\.py|memwatch/core/reading/collector_runner\.py", "sampler"),
    (r"memwatch/core/reading/", "snapshot and its own usage"),
    (r"memwatch/core/(\w+)", "core: {}"),
    (r"memwatch/", "other parts"),
)


def monitor_of(name: str, clock: FakeClock) -> Monitor:
    folder = MACHINES / name
    host = Host(Roots(folder / "proc", folder / "sys", folder / "root"))
    quick = [entry for entry in list_collectors(host) if not entry.may_block]
    return create_monitor(Sampler(quick, clock), clock, MonitorRules(), Identity("box", "boot"))


def warm_tick(name: str) -> Callable[[], None]:
    """Return a tick of a second later, of a monitor that has ticked for two minutes."""
    clock = FakeClock()
    monitor = monitor_of(name, clock)

    def tick() -> None:
        monitor.tick()
        clock.now += 1

    for _ in range(WARM_TICKS):
        tick()
    return tick


def relative(code: CodeType) -> str:
    """Return the path of a function below its package's folder, or nothing if it is not ours."""
    return next((code.co_filename[len(root) :] for root in OURS if code.co_filename.startswith(root)), "")


def count_functions(tick: Callable[[], None]) -> tuple[float, int]:
    """Return calls of our functions by an average tick, and the number of different ones in a minute."""
    calls: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and relative(code):
            calls[code] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(COUNTED_TICKS):
            tick()
    finally:
        sys.setprofile(before)
    return calls.total() / COUNTED_TICKS, len(calls)


def part_of(frame: FrameType | None) -> str:
    """Return the part that the innermost function of ours belongs to, or its caller's if it is a helper."""
    while frame is not None:
        path = relative(frame.f_code)
        for pattern, name in PARTS if path else ():
            if found := re.match(pattern, path):
                return name.format(*found.groups())
        frame = frame.f_back
    return "Python, between ticks"


def sample_parts(tick: Callable[[], None]) -> tuple[Counter[str], float]:
    """Return samples of CPU time by part, and the CPU time of a tick in µs. Caches are hot."""
    found: Counter[str] = Counter()

    def take(_: int, frame: FrameType | None) -> None:
        found[part_of(frame)] += 1

    before = signal.signal(signal.SIGPROF, take)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    ticks, spent, began = 0, 0.0, time.thread_time()
    try:
        while spent < CPU_SECONDS:
            tick()
            ticks, spent = ticks + 1, time.thread_time() - began
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return found, spent / ticks * 1e6


def bench_tick(sheet: Sheet) -> None:
    ticks = {name: warm_tick(name) for name in (PLAIN, "gb10", "jetson-agx-orin-jp6")}
    counted = Column("calls"), Column("different functions a minute", ".0f")
    sheet.head("functions", "a tick at rest, of captured files", *counted)
    for name, tick in ticks.items():
        sheet.row(name, *count_functions(tick))
    sheet.end()
    samples = {name: sample_parts(tick) for name, tick in ticks.items()}
    sheet.head("parts", "% of a tick, hot caches", *(Column(name, is_exact=False) for name in samples))
    totals = {name: found.total() for name, (found, _) in samples.items()}
    sheet.row("whole tick, µs of CPU", *(took for _, took in samples.values()))
    parts = sum((found for found, _ in samples.values()), Counter[str]())
    rest = dict.fromkeys(samples, 0.0)
    for part, _ in parts.most_common():
        percents = {name: 100 * found[part] / totals[name] for name, (found, _) in samples.items()}
        if max(percents.values()) >= MIN_PERCENT:
            sheet.row(part, *percents.values())
        else:
            rest = {name: rest[name] + percent for name, percent in percents.items()}
    sheet.row("others, each below half a percent", *rest.values())
    sheet.end()
