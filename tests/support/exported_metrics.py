"""Names of all exported metrics."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from memwatch.history.disk.files import FilesStatus
from memwatch.model import Absent, Process
from memwatch.notify.outbox.outbox import OutboxFigures
from memwatch.snapshot import Kernel, Machine, MemoryPsi, PsiLine, SelfUsage, Snapshot, Swap, Tegrastats
from memwatch_web.metrics.families import PREFIX, Exporter
from support.fakes import GIB, ram


def exported_names() -> set[str]:
    line = PsiLine(0.0, 0.0, 0.0, 0.0)
    own = SelfUsage(Absent.NOT_SUPPORTED, 0.0, 0.0, 0.0, False)
    snapshot = Snapshot(1, 0.0, 0.0, "boot", "host", 1.0, False, Machine(), own, (ram(GIB),))
    process = Process(1, 0.0, "init", 1, 1, "rss", unit=None, container=None)
    full = replace(
        snapshot,
        psi=MemoryPsi(line, line),
        swap=Swap(1, 0),
        tegrastats=Tegrastats(1, 1),
        kernel=Kernel(0, 0),
        processes=(process,),
    )
    files = FilesStatus(Path("/"), 0, 0, 0, 0, 0.0, 0, 0, 0, (), "")
    outbox = OutboxFigures(True, 0, 0)
    exporter = Exporter("1", dict, tuple, lambda: 1, lambda: outbox, lambda: files)
    suffix = {"counter": "_total", "info": "_info"}
    return {family.name.removeprefix(PREFIX) + suffix.get(family.type, "") for family in exporter.families(full)}
