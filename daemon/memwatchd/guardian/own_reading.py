"""The guardian's own reading of System RAM, from files that are opened at the start, and its pace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.linux.files import KeptFile, ParseError
from memwatch.core.linux.meminfo import Meminfo, gpu_pool_kib
from memwatch.core.model import RAM, PoolKind
from memwatch.core.pressure.forecast import Trend
from memwatch.core.pressure.signals import FLOORS, FULL_CRITICAL
from memwatch.core.snapshot import SHORT_USED, Level
from memwatchd.guardian.records import Adjustment, PoolState

# System RAM that the fastest known collapse fills in a second, as a fraction of its size: 80 % to full in 1.7 s.
FILL_RATIO = 0.12
# Between two readings, half of the time passes that such a collapse takes to the critical threshold.
MIN_SECONDS, MAX_SECONDS = 0.05, 1.0
VMSTAT_BYTES = 16 << 10
# Available fraction below which the daemon is asked.
SHORT_RATIO = 1 - SHORT_USED


class OwnReading:
    """Reader of meminfo and PSI. Opening raises OSError."""

    def __init__(self, procfs: Path) -> None:
        self._file = KeptFile(procfs / "meminfo")
        self._psi: KeptFile | None = None
        with suppress(OSError):  # a kernel without PSI
            self._psi = KeptFile(procfs / "pressure/memory", 512)
        self._vmstat: KeptFile | None = None
        with suppress(OSError):
            self._vmstat = KeptFile(procfs / "vmstat", VMSTAT_BYTES)
        self._meminfo = Meminfo()
        self._trend = Trend()

    def read(self, now: float, adjustment: Adjustment) -> PoolState:
        """Read System RAM at `now`, in monotonic seconds. Raises OSError and ParseError."""
        kib = self._meminfo.parse(self._file.read())
        if not {"MemTotal", "MemAvailable"} <= kib.keys():
            raise ParseError("meminfo has no MemTotal or no MemAvailable, which Linux has since 3.14")
        size = (kib["MemTotal"] - kib.get("Hugetlb", 0)) << 10
        available = (kib["MemAvailable"] + gpu_pool_kib(kib, kib["MemAvailable"])) << 10
        available += adjustment.more_bytes
        self._trend = self._trend.with_point(now, available, size, is_fast=True)
        forecast = self._trend.forecast(size)
        seconds = None if forecast is None else forecast.seconds
        pool = judge_ram(size, available, seconds, self._stalls, adjustment)
        return replace(pool, ready_bytes=read_ready(kib), swap_free_bytes=kib.get("SwapFree", 0) << 10)

    def _stalls(self) -> bool:
        """Return True if all tasks stalled on memory for a fifth of the last 10 s."""
        if self._psi is None:
            return False
        try:
            _, _, full = self._psi.read().partition(b"full avg10=")
            return float(full.split(None, 1)[0]) / 100 >= FULL_CRITICAL
        except (OSError, ValueError, IndexError):
            return False

    def count_kills(self) -> int | None:
        """Return the processes that the OOM killer killed since boot (Linux 4.13). None if that is not known."""
        if self._vmstat is None:
            return None
        try:
            _, found, rest = self._vmstat.read().partition(b"\noom_kill ")
            return int(rest.split(None, 1)[0]) if found else None
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        self._file.close()
        if self._vmstat is not None:
            self._vmstat.close()
        if self._psi is not None:
            self._psi.close()


def read_ready(kib: Mapping[str, int]) -> int | None:
    """Return free pages, file cache and reclaimable slabs in bytes, also those below the watermarks."""
    if "MemFree" not in kib:
        return None
    return sum(kib.get(name, 0) for name in ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")) << 10


def judge_ram(
    size: int, available: int, seconds_to_full: float | None, stalls: Callable[[], bool], adjustment: Adjustment
) -> PoolState:
    """Return System RAM with its level and the evidence for it. `stalls` is called only if memory is short.

    Full swap is no evidence: it may have filled up over days. A stall without a shortage is none either, as the
    memory that would end it is not known.
    """
    by_use = round((1 - adjustment.critical_ratio) * max(0, size - adjustment.resident_bytes))
    floor = min(next((least, round(part * size)) for level, least, part in FLOORS if level is Level.CRITICAL))
    evidence = []
    if available < by_use:
        evidence.append("util")
    if available < floor:
        evidence.append("floor")
    if evidence and stalls():
        evidence.append("psi_full")
    level = Level.CRITICAL if evidence else Level.HIGH if available < SHORT_RATIO * size else Level.LOW
    critical = max(by_use, floor)
    return PoolState(RAM, PoolKind.SYSTEM_RAM, size, available, critical, level, tuple(evidence), seconds_to_full)


def next_pause(pool: PoolState) -> float:
    """Return the seconds until the next reading: a second far from the limit, 50 ms at it."""
    above = pool.available_bytes - pool.critical_bytes
    return max(MIN_SECONDS, min(MAX_SECONDS, above / (FILL_RATIO * max(1, pool.size_bytes)) / 2))
