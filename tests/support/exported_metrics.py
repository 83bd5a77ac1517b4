"""All exported metrics, from a machine that has everything."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client.core import Metric

from memwatch.core.clock import SystemClock
from memwatch.core.model import Absent, Process
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import (
    Kernel,
    Machine,
    MemoryPsi,
    PsiLine,
    SelfUsage,
    Snapshot,
    Swap,
    Tegrastats,
    ZfsCache,
    Zram,
)
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.outbox import Outbox
from memwatch_web.metrics.families import Exporter, ProcessFigures, limit_series
from memwatch_web.metrics.samples import PREFIX, RowFamily
from support.fakes import GIB, ram
from support.monitors import create_monitor

SUFFIXES = {"counter": "_total", "info": "_info"}


def exported_families() -> list[RowFamily]:
    """Return every metric family that the exporter has."""
    line = PsiLine(0.0, 0.0, 0.0, 0.0)
    own = SelfUsage(Absent.NOT_SUPPORTED, 0.0, 0.0, 0.0, False)
    snapshot = Snapshot(1, 0.0, 0.0, "boot", "host", 1.0, False, Machine(), own, (ram(GIB),))
    process = Process(1, 0.0, "init", 1, 1, "rss", unit=None, container=None)
    full = replace(
        snapshot,
        psi=MemoryPsi(line, line),
        swap=Swap(1, 0, 0, 0),
        zram=Zram(0, 0),
        zfs_cache=ZfsCache(1, 1),
        tegrastats=Tegrastats(1, 1),
        kernel=Kernel(0, 0),
        processes=(process,),
    )
    process_figures = ProcessFigures(0, {"outbox": ThreadState.OK}, 0)
    monitor = create_monitor(Sampler([], SystemClock()), SystemClock(), MonitorRules(), Identity("host", "boot"))
    monitor.features.add(NotificationManager(monitor, Outbox(None)))
    exporter = Exporter("1", monitor.features, lambda: 1, lambda: process_figures, budgets=monitor.budgets)
    return [*exporter.families(full), *limit_series([])[0]]


def name_of(family: Metric) -> str:
    """Return the name of a family's samples; of a histogram, that of the family."""
    return family.name + SUFFIXES.get(family.type, "")


def sample_names(family: Metric) -> list[str]:
    """Return the names of a family's samples."""
    parts = ("_bucket", "_count", "_sum") if family.type == "histogram" else ("",)
    return [name_of(family) + part for part in parts]


def exported_names() -> set[str]:
    """Return the names of all samples, without the prefix."""
    return {name.removeprefix(PREFIX) for family in exported_families() for name in sample_names(family)}
