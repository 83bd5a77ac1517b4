"""System RAM, swap and processes on systems without /proc (macOS, the BSDs and Windows), through psutil."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from platform import machine
from typing import Any

from memwatch.core.collectors.base import BaseCollector, Collector, Host, ScanOptions
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatch.core.model import RAM, RAM_LABEL, Absent, Pool, PoolKind, Process, Quality, Words
from memwatch.core.owners import Owner
from memwatch.core.printable import printable
from memwatch.core.snapshot import Kernel, ProcessScan, Swap

# Only Linux counts OOM kills and compaction failures.
NO_COUNTERS = Kernel(*[Absent.NOT_SUPPORTED] * len(Kernel.__struct_fields__))


def build_pool(size: int, available: int, free: int, label: str = RAM_LABEL) -> Pool:
    if not 0 <= available <= size or not 0 <= free <= size:
        raise ParseError(f"psutil: available {available} and free {free} do not fit in {size}")
    return Pool(
        id=RAM,
        kind=PoolKind.SYSTEM_RAM,
        label=label,
        size_bytes=size,
        used_bytes=size - available,
        available_bytes=available,
        source="psutil:virtual_memory",
        quality=Quality.ESTIMATED,
        free_bytes=free,
    )


class HostCollector(BaseCollector):
    """System RAM and swap on systems without /proc (macOS, the BSDs and Windows), through psutil."""

    name = "psutil_host"

    def __init__(self, label: str = RAM_LABEL) -> None:
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
        return cls("Unified memory" if unified else RAM_LABEL)

    def collect(self) -> Findings:
        ram, swap = self._psutil.virtual_memory(), self._psutil.swap_memory()
        used = min(max(swap.used, 0), swap.total)
        pool = build_pool(ram.total, ram.available, ram.free, self._label)
        return Findings(pools=(pool,), swap=Swap(size_bytes=swap.total, used_bytes=used), kernel=NO_COUNTERS)


def build_process(info: Mapping[str, Any]) -> Process:
    """Build a process from psutil's data, where None means "not permitted"."""
    rss = info["memory_info"].rss
    return Process(
        pid=info["pid"],
        start_time=info["create_time"],
        name=printable(info["name"] or ""),
        rss_bytes=rss,
        footprint_bytes=rss,
        footprint_basis="rss",
        user=_user(info),
        unit=None,
        container=None,
    )


def sum_owners(infos: Iterable[Mapping[str, Any]]) -> tuple[Owner, ...]:
    """Sum the processes by user, the largest first; other systems have no units."""
    sums: dict[Words, tuple[int, int]] = {}
    for info in infos:
        user = _user(info)
        count, size = sums.get(user, (0, 0))
        sums[user] = (count + 1, size + info["memory_info"].rss)
    owners = [Owner("user", user, count, size) for user, (count, size) in sums.items()]
    return tuple(sorted(owners, key=lambda owner: -owner.rss_bytes))


def _user(info: Mapping[str, Any]) -> Words:
    return printable(info["username"]) if info["username"] else Absent.NOT_PERMITTED


class ProcessesCollector(BaseCollector):
    """The largest processes on systems without /proc, through psutil."""

    name = "psutil_processes"
    may_block = True

    def __init__(self, top: int = 50, period_seconds: float = 5.0) -> None:
        try:
            import psutil
        except ImportError as error:
            raise SourceUnavailable(f"psutil cannot be imported: {error}") from error
        self._psutil = psutil
        self._top = top
        self.period_seconds = period_seconds

    @classmethod
    def create(cls, host: Host) -> Collector:
        scan = host.options_for(ScanOptions)
        return cls(scan.top, scan.period_seconds)

    def collect(self) -> Findings:
        wanted = ["pid", "name", "memory_info", "create_time", "username"]
        seen = [process.info for process in self._psutil.process_iter(wanted)]
        # Process id 0 is the kernel's own on macOS and Windows.
        known = [info for info in seen if info["memory_info"] and info["create_time"] and info["pid"] > 0]
        top = nlargest(self._top, known, key=lambda info: info["memory_info"].rss)
        scan = ProcessScan(seen=len(seen), unreadable=len(seen) - len(known))
        return Findings(processes=tuple(map(build_process, top)), process_scan=scan, owners=sum_owners(known))
