"""Figures of the daemon, of the vendor's tool and of the kernel at the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from hardware.comparison import Held, Row, Sample, compare, has_wrong
from hardware.figures import CERTAIN, HEADROOM, MEMORY, NO_FIGURE, PROCESS, RAM, Figure, GpuPlace, read_figures
from hardware.holder_process import HolderProcess
from hardware.vendor_tools import Tool, ToolReading, read_meminfo
from support.daemon_process import RunningDaemon

NO_VENDOR: dict[str, Figure] = {}
# The daemon reads once a second. Each look takes both sides 5 ms of CPU time.
POLL_SECONDS = 0.1


class Settled(Struct, frozen=True):
    """Rows of a step once all were right, or at the end of the time; `seconds` it took."""

    rows: list[Row]
    seconds: float


class Sampler(Struct):
    """One GPU as the daemon shows it, beside the vendor's tool."""

    daemon: RunningDaemon
    place: GpuPlace
    tool: Tool
    max_seconds: float

    def sample(self, holder: HolderProcess) -> Sample:
        """Read the daemon first, as its figures are up to a second old."""
        return self.beside_vendor(self.shown(holder), holder)

    def shown(self, holder: HolderProcess) -> Sample:
        """Return what the daemon shows, alone: to start the vendor's tool takes a tenth of a second."""
        return Sample(read_figures(self.daemon.snapshot(), self.place, holder.pid), NO_VENDOR)

    def beside_vendor(self, sample: Sample, holder: HolderProcess) -> Sample:
        return Sample(sample.shown, self._vendor(holder))

    def _vendor(self, holder: HolderProcess) -> dict[str, Figure]:
        meminfo, reading = read_meminfo(), self.tool.read()
        free, certain = self._free(reading, meminfo, holder)
        found = {
            MEMORY: self._used_on_gpu(reading, meminfo, holder),
            # A tool may list no process at all, as on WSL or an Orin: that is no figure, and not 0.
            PROCESS: (reading.processes or {}).get(holder.pid),
            HEADROOM: free,
            CERTAIN: certain,
            # Where the GPU's memory is a NUMA node, MemTotal contains it.
            RAM: None if self.place.architecture == "coherent" else _ram_used(meminfo),
        }
        return {name: NO_FIGURE if figure is None else figure for name, figure in found.items()}

    def _free(
        self, reading: ToolReading, meminfo: dict[str, int], holder: HolderProcess
    ) -> tuple[int | None, int | None]:
        """Return free memory with and without reclaim, up to a constant: only its change is compared."""
        if not self.place.has_pool:
            return meminfo.get("MemAvailable"), meminfo.get("MemFree")
        if self.place.is_unified:
            return None, None
        left = _free_of_api(holder) if reading.used_on_card is None else -reading.used_on_card
        return left, left

    def _used_on_gpu(self, reading: ToolReading, meminfo: dict[str, int], holder: HolderProcess) -> int | None:
        """Return the tool's figure, else the sum over processes, else what the driver API's free memory leaves."""
        if reading.used is not None:
            return reading.used
        if "NvMapMemUsed" in meminfo:
            return meminfo["NvMapMemUsed"]
        if not self.place.has_pool:
            known = [size for size in (reading.processes or {}).values() if size is not None]
            is_known = reading.processes is not None and len(known) == len(reading.processes)
            return sum(known) if is_known else None
        free = _free_of_api(holder)
        return None if free is None else -free

    def settle(self, step: str, holder: HolderProcess, base: Sample, held: Held) -> Settled:
        """Wait until every figure of the step is right. The tool is asked once the daemon shows what was asked."""
        began = time.monotonic()
        while True:
            shown = self.shown(holder)
            passed = time.monotonic() - began
            if passed > self.max_seconds or not has_wrong(compare(step, self.place, base, shown, held)):
                rows = compare(step, self.place, base, self._with_vendor(shown, holder), held)
                if passed > self.max_seconds or not has_wrong(rows):
                    return Settled(rows, passed)
            time.sleep(POLL_SECONDS)

    def _with_vendor(self, shown: Sample, holder: HolderProcess) -> Sample:
        if holder.is_running:
            holder.refresh()
        return self.beside_vendor(shown, holder)

    def wait(self, happened: Callable[[Any], bool]) -> float | None:
        """Return the seconds until a snapshot shows it; None if none does in time."""
        began = time.monotonic()
        while time.monotonic() - began <= self.max_seconds:
            if happened(self.daemon.snapshot()):
                return time.monotonic() - began
            time.sleep(POLL_SECONDS)
        return None


def _ram_used(meminfo: dict[str, int]) -> int | None:
    available = meminfo.get("MemAvailable")
    return None if available is None else meminfo["MemTotal"] - available


def _free_of_api(holder: HolderProcess) -> int | None:
    """Return the driver API's own figure, which only a running process has."""
    return holder.facts.free_bytes if holder.is_running else None
