"""GPUs that the kernel may suspend while they are idle (runtime D3), and which of them must not be called now.

Opening NVML resumes a suspended GPU, and a GPU that NVML has open stays awake: on a laptop with an RTX 2000 Ada,
`runtime_status` was `active` while a process had NVML open, and `suspended` 6 s after it was closed. btop 1.4.7
resumed an RTX 5070 by nvmlInit alone. A suspended GPU is therefore not called, and an idle one is released for some
seconds, in which it can be suspended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.drivers.nvml.gpu import StaticInfo
from memwatch.core.drivers.nvml.records import Asleep, GpuReading
from memwatch.core.linux.files import Roots, names_in, read_once
from memwatch.core.linux.pci import is_awake_status, may_suspend, pci_numbers, read_status
from memwatch.core.model import Absent, Vitals

Address = tuple[int, ...]

# A GPU is released after it was idle for this long. Its utilization may be 20 s old, its processes are current.
IDLE_SECONDS = 30.0
# A released GPU that is not suspended after this time is read again, and is released again after twice the time.
RELEASED_SECONDS = 20.0
MAX_IDLE_SECONDS = 3600.0
# A display server lists every GPU, with 2 to 10 MiB on one that it does not draw with. A CUDA context has 100 MiB.
MAX_IDLE_BYTES = 32 << 20
# Interval for GPUs that are added or removed, and for a change of `power/control`.
RESCAN_SECONDS = 10.0
# `Runtime D3 status` of a driver that never suspends the GPU: "Not supported", "Disabled", "Disabled by default".
_NEVER = re.compile(rb"^Runtime D3 status:\s+(?:Not supported|Disabled)", re.MULTILINE)


class SuspendableGpu:
    """One GPU that may be suspended. `asleep` is set while it must not be called."""

    def __init__(self, address: Address, device: Path) -> None:
        self._device = device
        self._last = unread_gpu(address)
        self._shown = Asleep("suspended", Absent.NOT_AVAILABLE)
        self._idle_since: float | None = None
        self._patience = IDLE_SECONDS
        self._released_at = 0.0
        self._was_seen = False
        self.asleep: Asleep | None = None

    def look(self, now: float, unix: float) -> None:
        """Read the runtime status, which wakes no GPU."""
        if not is_awake_status(read_status(self._device)):
            self._patience = IDLE_SECONDS
            if self.asleep is None or self.asleep.status != "suspended":
                self.asleep = Asleep("suspended", unix if self._was_seen else Absent.NOT_AVAILABLE)
        elif self.asleep is not None and self.asleep.status == "suspended":
            self._wake()
        elif self.asleep is not None and now - self._released_at >= RELEASED_SECONDS:
            self._patience = min(2 * self._patience, MAX_IDLE_SECONDS)
            self._wake()
        self._was_seen = True
        self._shown = self.asleep or self._shown

    def note(self, reading: GpuReading, now: float, unix: float) -> None:
        """Keep the reading. Release the GPU if it has been idle for long enough."""
        self._last = reading
        if not is_idle(reading):
            self._idle_since = None
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since >= self._patience:
            self.asleep = self._shown = Asleep("idle", unix)
            self._released_at = now

    def read(self) -> GpuReading:
        """Return the last reading without the figures that may have changed. The GPU is not called."""
        return without_figures(self._last, self._shown)

    def _wake(self) -> None:
        self.asleep = self._idle_since = None


def is_idle(reading: GpuReading) -> bool:
    """Return True if a GPU computes nothing and no process holds memory, as far as both are known."""
    if reading.state != "ok" or isinstance(reading.processes, Absent) or reading.busy_ratio != 0:
        return False
    held = [process.used_bytes for process in reading.processes]
    return sum(MAX_IDLE_BYTES + 1 if isinstance(one, Absent) else one for one in held) <= MAX_IDLE_BYTES


def unread_gpu(address: Address) -> GpuReading:
    """Build the reading of a GPU that has been suspended since the start: only its address is known."""
    gone = Absent.SUSPENDED
    return GpuReading(-1, gone, pci_text(address), gone, memory=gone, bar1_bytes=gone, numa_node=gone)


def pci_text(address: Address) -> str:
    """Return a PCI address as NVML writes it: 00000000:01:00.0."""
    domain, bus, device, function = address
    return f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}"


def without_figures(last: GpuReading, asleep: Asleep) -> GpuReading:
    gone = Absent.SUSPENDED
    vitals = Vitals.absent(gone)
    return replace(last, asleep=asleep, processes=gone, vitals=vitals, busy_ratio=gone, memory_busy_ratio=gone)


class SleepingGpu(Struct, frozen=True):
    """A place in the list of GPUs that is not called, with the same attributes as `Gpu`."""

    index: int
    source: SuspendableGpu

    @property
    def static(self) -> StaticInfo:
        last = self.source.read()
        return StaticInfo(last.uuid, last.pci, last.name)


class RuntimeSuspend:
    """All GPUs of the driver, by PCI address, and those of them that may be suspended.

    A GPU whose `power/control` is `on`, as on servers and desktops by default, is none of the latter: for it,
    nothing but that file is read.
    """

    def __init__(self, roots: Roots, wall_clock: Callable[[], float] = time.time) -> None:
        self._driver = roots.sysfs / "bus/pci/drivers/nvidia"
        self._gpus_in_proc = roots.procfs / "driver/nvidia/gpus"
        self._wall_clock = wall_clock
        self._rescan_at = float("-inf")
        self._never: frozenset[Address] = frozenset()
        self._suspendable: Mapping[Address, SuspendableGpu] = {}
        self.bound: frozenset[Address] = frozenset()

    @property
    def left_alone(self) -> frozenset[Address]:
        """The GPUs that must not be called now."""
        return frozenset(address for address, gpu in self._suspendable.items() if gpu.asleep)

    @property
    def arrangement(self) -> object:
        """Differs after a GPU fell asleep or woke up: then NVML has to be opened again, or closed."""
        return (self.left_alone, self.bound) if self.left_alone else None

    def find(self, address: Address | None) -> SuspendableGpu | None:
        return self._suspendable.get(address) if address else None

    def look(self, now: float) -> None:
        if now >= self._rescan_at:
            self._rescan_at = now + RESCAN_SECONDS
            self._rescan()
        for gpu in self._suspendable.values():
            gpu.look(now, self._wall_clock())

    def note(self, reading: GpuReading, now: float) -> None:
        gpu = self.find(pci_numbers(reading.pci)) if self._suspendable else None
        if gpu is not None:
            gpu.note(reading, now, self._wall_clock())

    def _rescan(self) -> None:
        devices = {address: name for name in names_in(self._driver) if (address := pci_numbers(name))}
        self.bound = frozenset(devices)
        may = {address: name for address, name in devices.items() if may_suspend(self._driver / name)}
        self._never = frozenset(a for a in may if a in self._never or self._is_never_suspended(may[a]))
        self._suspendable = {
            address: self._suspendable.get(address) or SuspendableGpu(address, self._driver / name)
            for address, name in may.items()
            if address not in self._never
        }

    def _is_never_suspended(self, name: str) -> bool:
        """Return True if the driver will not suspend the GPU, although the kernel may. Not asked while it sleeps.

        Both files are unknown, and the answer is False, if they cannot be read: then the GPU is released in vain.
        """
        status = read_status(self._driver / name)
        if status == "unsupported":
            return True
        power = read_once(self._gpus_in_proc / name / "power") if is_awake_status(status) else None
        return bool(_NEVER.search(power or b""))
