"""GPU memory of a Tegra by process, from NvMap's table in debugfs.

Only root may enter debugfs. The table itself is readable by all users (nvmap_dev.c: S_IRUGO).

It is read in its own thread, not on the tick: the kernel walks every buffer of every client under their locks.
"""

from __future__ import annotations

from contextlib import suppress

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.drivers.tegra.board import AUTO, TegraOptions, detect_soc
from memwatch.core.drivers.tegra.nvmap import KERNEL_PID, parse_clients
from memwatch.core.drivers.tegra.records import NvMapReading
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent

CLIENTS = "kernel/debug/nvmap/iovmm/clients"
# With the drop-in jetson.conf, NvMap's folder alone is mounted in place of debugfs.
PATHS = (CLIENTS, "kernel/debug/iovmm/clients")
MAX_BYTES = 1 << 20
WITHOUT_NVMAP = frozenset({"tegra264"})
REFUSED = NvMapReading(
    Absent.NOT_PERMITTED,
    Absent.NOT_PERMITTED,
    f"GPU memory by process is not available: /sys/{CLIENTS} is not readable; "
    "use the drop-in jetson.conf, or run memwatchd as root.",
)


class Collector(BaseCollector):
    name = "nvmap"
    period_seconds: float = 5.0
    may_block = True
    about = "GPU memory of a Jetson by process. Needs root or the drop-in jetson."

    def __init__(self, roots: Roots, pids: GpuPids, board: str = AUTO) -> None:
        soc = detect_soc(roots, board)
        if soc is None:
            raise SourceUnavailable("no Tegra: /proc/device-tree/compatible does not name one")
        if soc in WITHOUT_NVMAP:
            raise SourceUnavailable(f"{soc} does not allocate GPU memory through NvMap; NVML lists its processes")
        self._sysfs = roots.sysfs
        self._pids = pids

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.gpu_pids, host.options_for(TegraOptions).board)

    def collect(self) -> Findings:
        try:
            data = self._read()
        except PermissionError:
            self._pids.update(self.name, frozenset())
            return Findings(nvmap=REFUSED)
        if data is None:
            self._pids.update(self.name, frozenset())
            raise SourceUnavailable(f"{self._sysfs / CLIENTS}: does not exist; is debugfs mounted?")
        try:
            table = parse_clients(data)
        except DecodeError as error:
            raise ParseError(str(error)) from None
        self._pids.update(self.name, frozenset(one.pid for one in table.clients if one.pid != KERNEL_PID))
        return Findings(nvmap=NvMapReading(table.total_bytes, table.clients), rejected=table.rejected)

    def _read(self) -> bytes | None:
        for path in PATHS:
            with suppress(FileNotFoundError), (self._sysfs / path).open("rb") as file:
                return file.read(MAX_BYTES)
        return None

    def close(self) -> None:
        pass
