"""Figures of AMD and Intel GPUs that their firmware answers. It may be slow, so each collector has its thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.drivers.amd import amdgpu_cards as cards
from memwatch.core.drivers.amd.records import AmdSensors
from memwatch.core.drivers.amd.sysfs import parse_bad_pages, parse_errors, parse_ratio
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.hwmon import GpuSensors, find_sensors
from memwatch.core.linux.pci import is_awake, may_suspend
from memwatch.core.model import Absent

# Interval for added and removed GPUs.
RESCAN_SECONDS = 60.0


class HwmonCollector(BaseCollector):
    """Temperature, power, clocks and throttling of AMD and Intel GPUs. No suspended GPU wakes up.

    Reads in its own thread: the firmware of a busy GPU may take milliseconds to answer.
    """

    name = "hwmon"
    signs: tuple[str, ...] = ("sys/class/drm/",)
    period_seconds: float = 5.0
    may_block = True

    def __init__(self, roots: Roots, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(roots)
        self._monotonic = monotonic
        self._gpus: dict[str, GpuSensors] = {}
        self._rescan()

    def collect(self) -> Findings:
        now = self._monotonic()
        if now >= self._rescan_at or not self._gpus:
            self._rescan()
        return Findings(hwmon={pci: gpu.read(now) for pci, gpu in self._gpus.items()})

    def _rescan(self) -> None:
        self._rescan_at = self._monotonic() + RESCAN_SECONDS
        found = find_sensors(self._roots.sysfs)
        kept = {pci: gpu for pci, gpu in self._gpus.items() if pci in found and gpu.files == found[pci].files}
        self._gpus = found | kept
        if not found:
            raise SourceUnavailable("no AMD or Intel GPU with sensors found")


ERRORS_SECONDS = 60.0
# One page is a line of 35 characters; drivers stop at a few thousand pages.
_MAX_BAD_PAGES_BYTES = 1 << 18


class AmdgpuSensorsCollector(BaseCollector):
    """Utilization and memory errors of AMD GPUs, read from the GPU's firmware, which may be slow to answer.

    Reads only GPUs that never suspend: reading others would keep them from suspending (Linux 6.12, 7.2).
    """

    name = "amdgpu_sensors"
    signs: tuple[str, ...] = ("sys/class/drm/",)
    period_seconds: float = 2.0
    may_block = True

    def __init__(self, roots: Roots, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._drm, self._pci = roots.sysfs / "class/drm", roots.sysfs / "bus/pci/devices"
        self._monotonic = monotonic
        self._errors_at = 0.0
        self._errors: dict[str, dict[str, int]] = {}
        self._gpus: list[str] = []
        if not cards.find(self._drm).gpus:
            raise SourceUnavailable(f"{self._drm}: no card of the driver {cards.DRIVER}")

    def collect(self) -> Findings:
        if self._monotonic() >= self._errors_at:
            self._errors_at = self._monotonic() + ERRORS_SECONDS
            self._gpus = [pci for pci in cards.find(self._drm).gpus if stays_awake(self._pci / pci)]
            self._errors = {pci: read_errors(self._pci / pci / "ras") for pci in self._gpus}
        return Findings(amdgpu_sensors={pci: self._read_sensors(pci) for pci in self._gpus})

    def close(self) -> None:
        pass

    def _read_sensors(self, pci: str) -> AmdSensors:
        device = self._pci / pci
        return AmdSensors(
            parse_ratio(cards.read(device / "gpu_busy_percent", 64)),
            parse_ratio(cards.read(device / "mem_busy_percent", 64)),
            self._errors[pci],
        )


def stays_awake(device: Path) -> bool:
    return is_awake(device) and not may_suspend(device)


def read_errors(ras: Path) -> dict[str, int]:
    """Read error counts of the memory controller since the driver was loaded, and retired pages."""
    counts, pages = cards.read(ras / "umc_err_count"), cards.read(ras / "gpu_vram_bad_pages", _MAX_BAD_PAGES_BYTES)
    found = {} if isinstance(counts, Absent) else parse_errors(counts)
    return found if isinstance(pages, Absent) else found | parse_bad_pages(pages)
