"""Temperature, power, clocks and throttling of AMD and Intel GPUs. No suspended GPU wakes up."""

from __future__ import annotations

import time
from collections.abc import Callable

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.hwmon import GpuSensors, find_sensors

# Interval for added and removed GPUs.
RESCAN_SECONDS = 60.0


class Collector(BaseCollector):
    """Reads in its own thread: the firmware of a busy GPU may take milliseconds to answer."""

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
