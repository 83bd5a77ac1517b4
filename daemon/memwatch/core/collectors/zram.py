"""Compressed block devices in RAM (zram). They use System RAM and never add to it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.model import MAX_BYTES, Absent, Bytes, sum_figures
from memwatch.core.snapshot import Zram

# The kernel does not read its counters at the same instant.
SLACK_BYTES = 1 << 20


def parse_mm_stat(data: bytes) -> Zram:
    """Parse the first and third column: bytes stored, and bytes of RAM used, metadata and waste included.

    Both contain the second, the compressed bytes: a figure below it is left out by itself.
    """
    columns = data.split()
    if len(columns) < 3 or not data.endswith(b"\n"):
        raise ParseError(f"mm_stat: {data[:120]!r} does not start with three figures")
    stored, compressed, memory = map(_figure, columns[:3])
    if isinstance(compressed, int) and isinstance(stored, int) and isinstance(memory, int):
        if stored + SLACK_BYTES < compressed <= memory + SLACK_BYTES:
            stored = Absent.INCONSISTENT
        elif memory + SLACK_BYTES < compressed <= stored + SLACK_BYTES:
            memory = Absent.INCONSISTENT
    return Zram(stored, memory)


def _figure(column: bytes) -> Bytes:
    if not column.isdigit() or len(column) > 20 or int(column) > MAX_BYTES:
        return Absent.INCONSISTENT
    return int(column)


def _read_device(folder: Path) -> Zram:
    """Return the figures of one device. Those of the others stay in use without it, but no sum does."""
    try:
        return parse_mm_stat((folder / "mm_stat").read_bytes())
    except ParseError:
        return Zram(Absent.INCONSISTENT, Absent.INCONSISTENT)
    except OSError:
        return Zram(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)


class Collector(BaseCollector):
    name = "zram"
    period_seconds: float = 10.0

    def __init__(self, roots: Roots) -> None:
        self._folder = roots.sysfs / "block"
        if not self._devices():
            raise SourceUnavailable(f"{self._folder}: no zram device")

    def collect(self) -> Findings:
        devices = [_read_device(self._folder / name) for name in self._devices()]
        stored = [device.stored_bytes for device in devices]
        memory = [device.memory_bytes for device in devices]
        return Findings(
            zram=Zram(sum_figures(stored), sum_figures(memory)),
            rejected=sum(one is Absent.INCONSISTENT for one in (*stored, *memory)),
        )

    def _devices(self) -> list[str]:
        with suppress(OSError):
            return [name for name in os.listdir(self._folder) if name.startswith("zram") and name[4:5].isdecimal()]
        return []
