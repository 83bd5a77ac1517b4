"""One hour of a sample machine before its snapshot: a slow rise, a spike, a gap, a restart and events."""

from __future__ import annotations

import math
from functools import cache, lru_cache

from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.snapshot import Level, Snapshot
from memwatch.reporting.history.last_run import UncleanShutdown, build_unclean_shutdown
from memwatch.reporting.history.notable_ticks import build_tick
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.series import AllSeries, collect_figures
from memwatch_monitor.history.tiers import TIER_SPECS, History
from memwatch_web.pages.history_data import HistoryInput

SECONDS, STEP = 3600, 2
# Boot time of the snapshot: the machine is older than its history.
END = 200_000.0
GAP = range(2000, 2300)
SPIKE = range(2700, 2706)
TIMES = [second for second in range(0, SECONDS + 1, STEP) if second not in GAP]
# The figure that differs between two snapshots of the same state. Its past does not depend on it.
OWN_CPU = "self.cpu_seconds"


def past_of(snapshot: Snapshot) -> HistoryInput:
    """Return the hour before a snapshot. Those with the same figures share its series, which no page changes."""
    figures = {**collect_figures(snapshot), OWN_CPU: 0.0}
    series = _series_of(tuple(figures.items()))
    return HistoryInput(series, snapshot.unix - END, TIER_SPECS, events_of(snapshot))


@lru_cache(maxsize=64)
def _series_of(figures: tuple[tuple[str, float], ...]) -> AllSeries:
    history = History()
    names = [name for name, _ in figures]
    columns = [_past_values(name, value) for name, value in figures]
    for second, *row in zip(TIMES, *columns, strict=True):
        history.add(END - SECONDS + second, dict(zip(names, row, strict=True)))
    return AllSeries(history, HolderHistory())


def _past_values(name: str, value: float) -> list[float]:
    """Return the values of a figure at `TIMES`; the last one is that of the snapshot."""
    if name == OWN_CPU:
        return [second * 0.0012 if second > GAP.stop else 900 + second * 0.0012 for second in TIMES]
    rises = _rises(len(name))
    if name.endswith(".level"):
        levels = (Level.LOW if rise < 0.75 else Level.MEDIUM if rise < 0.9 else Level.CRITICAL for rise in rises)
        return [float(min(value, level)) for level in levels]
    if name.endswith((".available_bytes", ".headroom_after_reclaim_bytes", ".free_bytes")):
        return [value * (3 - 2 * rise) for rise in rises]
    return [value * rise for rise in rises] if name.endswith(("_bytes", ".ratio")) else [value] * len(rises)


@cache
def _rises(phase: int) -> list[float]:
    return [1.0 if second in SPIKE else _rise(phase, second) for second in TIMES]


def _rise(phase: int, second: int) -> float:
    return 0.55 + 0.45 * second / SECONDS + 0.02 * math.sin(second / 47 + phase) * (1 - second / SECONDS)


def events_of(snapshot: Snapshot) -> list[Event]:
    """Return events, newest first."""
    start = snapshot.unix - SECONDS
    texts = [
        (GAP.stop, "started", f"memwatchd started on {snapshot.host}"),
        (2400, "mark", "Before VAE Load (process 4242)"),
        (2420, "mark", "<script>alert(3)</script>"),
        (SPIKE.start, "level", "System RAM: OK → high (87.5% used; 8.0 GiB of 64.0 GiB available)"),
        (SPIKE.stop, "oom_kill", "OOM killer: killed python (4242), 9.1 GiB anonymous"),
        (3100, "driver", "the driver of gpu0 reported XID 31: MMU fault"),
    ]
    return [
        Event(seq, start + at, kind, text, "ram" if kind == "level" else None)
        for seq, (at, kind, text) in reversed(list(enumerate(texts, 1)))
    ]


def end_of_run(snapshot: Snapshot, restarted: bool = True, seconds: int = 30) -> UncleanShutdown:
    """Return the last words of a machine that stayed as it is."""
    ticks = [
        build_tick(
            replace(snapshot, seq=second, unix=snapshot.unix + second), 100.0 + second, collect_figures(snapshot)
        )
        for second in range(seconds)
    ]
    return build_unclean_shutdown(ticks, (), ticks[-1].unix, restarted)
