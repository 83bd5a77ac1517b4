"""System RAM and swap on systems without /proc (macOS, the BSDs and Windows), through psutil."""

from __future__ import annotations

from platform import machine

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatch.core.model import Absent, Pool, PoolKind, Quality
from memwatch.core.snapshot import Kernel, Swap

# Only Linux counts OOM kills and compaction failures.
NO_COUNTERS = Kernel(*[Absent.NOT_SUPPORTED] * len(Kernel.__struct_fields__))


def build_pool(size: int, available: int, free: int, label: str = "System RAM") -> Pool:
    if not 0 <= available <= size or not 0 <= free <= size:
        raise ParseError(f"psutil: available {available} and free {free} do not fit in {size}")
    return Pool(
        id="ram",
        kind=PoolKind.SYSTEM_RAM,
        label=label,
        size_bytes=size,
        used_bytes=size - available,
        available_bytes=available,
        source="psutil:virtual_memory",
        quality=Quality.ESTIMATED,
        free_bytes=free,
    )


class Collector(BaseCollector):
    name = "psutil_host"
    period_seconds: float = 0.0
    may_block = False

    def __init__(self, label: str = "System RAM") -> None:
        try:
            import psutil
        except ImportError as error:
            raise SourceUnavailable(f"psutil cannot be imported: {error}") from error
        self._psutil = psutil
        self._label = label

    @classmethod
    def create(cls, host: Host) -> Collector:
        # Apple's chips have one memory for CPU and GPU; this is Apple's name for it.
        unified = (host.platform, machine()) == ("darwin", "arm64")
        return cls("Unified memory" if unified else "System RAM")

    def collect(self) -> Findings:
        ram, swap = self._psutil.virtual_memory(), self._psutil.swap_memory()
        used = min(max(swap.used, 0), swap.total)
        pool = build_pool(ram.total, ram.available, ram.free, self._label)
        return Findings(pools=(pool,), swap=Swap(size_bytes=swap.total, used_bytes=used), kernel=NO_COUNTERS)

    def close(self) -> None:
        pass
