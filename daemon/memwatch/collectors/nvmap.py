"""Which processes hold a Tegra's GPU memory, from NvMap's table in debugfs. For root only.

A thread of its own and not the tick: the kernel walks every buffer of every client under their locks for it.
"""

from __future__ import annotations

from memwatch.collector import Findings, Roots, Unavailable, Unreadable
from memwatch.collectors._gpus import GpuPids
from memwatch.collectors._tegra import AUTO, soc_of
from memwatch.model import Absent
from memwatch.tegra.nvmap import KERNEL_PID, parse_clients
from memwatch.tegra.reading import NvMapReading
from memwatch.wire import Garbled

CLIENTS = "kernel/debug/nvmap/iovmm/clients"
MOST_BYTES = 1 << 20
WITHOUT_NVMAP = frozenset({"tegra264"})
REFUSED = NvMapReading(
    Absent.NOT_PERMITTED,
    Absent.NOT_PERMITTED,
    f"As root, memwatchd would add what each process holds of the GPU's memory: it may not read /sys/{CLIENTS}.",
)


class Collector:
    name = "nvmap"
    period_seconds = 5.0
    may_block = True

    def __init__(self, roots: Roots, pids: GpuPids, board: str = AUTO) -> None:
        soc = soc_of(roots, board)
        if soc is None:
            raise Unavailable("no Tegra: /proc/device-tree/compatible does not name one")
        if soc in WITHOUT_NVMAP:
            raise Unavailable(f"{soc} does not allocate GPU memory through NvMap; NVML lists its processes")
        self._path = roots.sysfs / CLIENTS
        self._pids = pids

    def collect(self) -> Findings:
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_BYTES)
        except PermissionError:
            self._pids.tell(self.name, frozenset())
            return Findings(nvmap=REFUSED)
        except FileNotFoundError:
            self._pids.tell(self.name, frozenset())
            raise Unavailable(f"{self._path}: not there; is debugfs mounted?") from None
        try:
            table = parse_clients(data)
        except Garbled as error:
            raise Unreadable(str(error)) from None
        self._pids.tell(self.name, frozenset(one.pid for one in table.clients if one.pid != KERNEL_PID))
        return Findings(nvmap=NvMapReading(table.total_bytes, table.clients), rejected=table.rejected)

    def close(self) -> None:
        pass
