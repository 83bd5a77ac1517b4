"""Compressed block devices in RAM (zram). They use System RAM and never add to it."""

from __future__ import annotations

import os
from contextlib import suppress

from memwatch.collectors.base import BaseCollector
from memwatch.findings import Findings
from memwatch.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.snapshot import Zram

# No machine has an exbibyte of memory.
MAX_BYTES = 1 << 60


def parse_mm_stat(data: bytes) -> Zram:
    """Parse the first and third column: bytes stored, and bytes of RAM used, metadata and waste included."""
    columns = data.split()
    if len(columns) < 3 or not data.endswith(b"\n") or not all(column.isdigit() for column in columns[:3]):
        raise ParseError(f"mm_stat: {data[:120]!r} does not start with three figures")
    return Zram(stored_bytes=_figure(columns[0]), memory_bytes=_figure(columns[2]))


def _figure(column: bytes) -> int:
    if len(column) > 20 or int(column) > MAX_BYTES:
        raise ParseError(f"mm_stat: {column[:40]!r} is no size that a device can have")
    return int(column)


class Collector(BaseCollector):
    name = "zram"
    period_seconds: float = 10.0
    may_block = False
    sole_fields: tuple[str, ...] = ("zram",)

    def __init__(self, roots: Roots) -> None:
        self._folder = roots.sysfs / "block"
        if not self._devices():
            raise SourceUnavailable(f"{self._folder}: no zram device")

    def collect(self) -> Findings:
        devices = [parse_mm_stat((self._folder / name / "mm_stat").read_bytes()) for name in self._devices()]
        stored = sum(device.stored_bytes for device in devices)
        return Findings(zram=Zram(stored, sum(device.memory_bytes for device in devices)))

    def close(self) -> None:
        pass

    def _devices(self) -> list[str]:
        with suppress(OSError):
            return [name for name in os.listdir(self._folder) if name.startswith("zram") and name[4:5].isdecimal()]
        return []
