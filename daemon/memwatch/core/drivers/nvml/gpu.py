"""One GPU: read with a few calls each time, and not accessed any more once it is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import Struct

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.errors import GPU_WIDE, HANDLE_GONE, NO_HANDLE, Code, absent_reason
from memwatch.core.drivers.nvml.memory_limits import LimitReader
from memwatch.core.drivers.nvml.mig import Mig
from memwatch.core.drivers.nvml.process_lists import ProcessLists
from memwatch.core.drivers.nvml.query import Query
from memwatch.core.drivers.nvml.records import (
    AddressingMode,
    CgroupLimit,
    Ecc,
    GpuInstance,
    GpuMemory,
    GpuProcess,
    GpuReading,
    GpuState,
    VirtualizationMode,
)
from memwatch.core.drivers.nvml.slow_fields import SlowFields
from memwatch.core.drivers.nvml.validation import (
    AnswerValidator,
    Row,
    capacity_of_instances,
    join_lists,
    process_capacity,
)
from memwatch.core.drivers.nvml.vital_fields import VitalFields
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Vitals, Words

T = TypeVar("T")

# Temperature, power and clocks are read three times as often as facts that rarely change.
VITALS_PER_SLOW_PERIOD = 3


class StaticInfo(Struct, frozen=True):
    """Properties of a GPU that never change."""

    uuid: Words
    pci: Words
    name: Words
    numa_node: int | Absent = Absent.NOT_AVAILABLE
    addressing_mode: AddressingMode | Absent = Absent.NOT_AVAILABLE
    virtualization_mode: VirtualizationMode | Absent = Absent.NOT_AVAILABLE


def read_static(handle: binding.Handle, codes: dict[str, int]) -> StaticInfo:
    def ask(name: str, form: Callable[[], T]) -> T | Absent:
        return Query(codes, (name, form)).ask()

    return StaticInfo(
        uuid=ask("uuid", partial(binding.text, "nvmlDeviceGetUUID", handle)),
        pci=ask("pci", partial(binding.pci_address, handle)),
        name=ask("name", partial(binding.text, "nvmlDeviceGetName", handle)),
        numa_node=ask("numa_node", partial(binding.numa_node, handle)),
        addressing_mode=ask("addressing_mode", partial(binding.addressing_mode, handle)),
        virtualization_mode=ask("virtualization_mode", partial(binding.virtualization_mode, handle)),
    )


class UnreachableGpu(Struct, frozen=True):
    """A GPU that cannot be read: it is listed with the reason and without values.

    `held` is true while the library has it open, which prevents an administrator from resetting it.
    """

    index: int
    static: StaticInfo
    code: int
    held: bool = False

    @property
    def state(self) -> GpuState:
        if self.code == Code.RESET_REQUIRED:
            return "needs_reset"
        return "lost" if self.code in GPU_WIDE | HANDLE_GONE | NO_HANDLE else "ok"

    @property
    def blocks_reset(self) -> bool:
        return self.held and self.state == "needs_reset"

    def read(self) -> GpuReading:
        static, reason = self.static, absent_reason(self.code)
        return GpuReading(
            index=self.index,
            uuid=static.uuid,
            pci=static.pci,
            name=static.name,
            state=self.state,
            memory=reason,
            bar1_bytes=reason,
            numa_node=static.numa_node,
            addressing_mode=static.addressing_mode,
            virtualization_mode=static.virtualization_mode,
            mig_enabled=reason,
            processes=reason,
            ecc=Ecc(*[reason] * 6),
            recovery_action=reason,
            vitals=Vitals.absent(reason),
            busy_ratio=reason,
            memory_busy_ratio=reason,
            codes={"device": self.code},
        )


class Gpu:
    """A GPU with a handle. Creating or reading one raises `Refused` if the GPU or the library became unusable.

    `is_mute` is true if both its memory and its process list were unavailable in the last reading.
    """

    def __init__(
        self,
        index: int,
        handle: binding.Handle,
        roster: binding.ProcessListBuffer,
        sieve: AnswerValidator,
        slow_seconds: float,
        roots: Roots,
    ) -> None:
        self.index = index
        self.handle: binding.Handle = handle
        self._codes: dict[str, int] = {}
        self._validator = sieve
        self.static: StaticInfo = read_static(handle, self._codes)
        self._memory = Query(
            self._codes,
            ("memory_info_v2", partial(binding.memory_v2, handle)),
            ("memory_info", partial(binding.memory_v1, handle)),
            fatal=GPU_WIDE | HANDLE_GONE,
        )
        self._lists = ProcessLists(handle, roster, self._codes)
        self._mps_seen = False
        self.is_mute: bool = False
        self._mig = Mig(handle, self._codes, roster, sieve, slow_seconds)
        self._limits = LimitReader(handle, self.static.pci, roots, self._codes)
        self.slow: SlowFields = SlowFields(handle, self._codes, self._lists.mps, slow_seconds)
        self._vitals = VitalFields(handle, self._codes, sieve, slow_seconds / VITALS_PER_SLOW_PERIOD)

    @property
    def address(self) -> tuple[int, ...] | None:
        return pci_numbers(self.static.pci)

    def on_reconfigured(self) -> None:
        """Discard MIG handles and slow values: the MIG configuration changed, and perhaps the mode."""
        self._mig.forget()
        self.slow.expire()

    def _refresh(self, now: float) -> None:
        """Read all slow values the first time, then the one that is due for longest."""
        due = [one for one in (self.slow, self._vitals) if one.next_at <= now]
        first = [one for one in due if one.next_at == float("-inf")]
        for one in first or sorted(due, key=lambda one: one.next_at)[:1]:
            one.ask(now)

    def read(self, now: float) -> GpuReading:
        self._refresh(now)
        memory = self._validator.memory(self._memory.ask())
        instances = self._instances(now)
        processes = self._processes(memory, instances)
        self.is_mute = memory is processes is Absent.NOT_AVAILABLE
        static, slow, latest = self.static, self.slow, self._vitals.latest
        return GpuReading(
            index=self.index,
            uuid=static.uuid,
            pci=static.pci,
            name=static.name,
            memory=memory,
            bar1_bytes=slow.bar1_bytes,
            numa_node=static.numa_node,
            addressing_mode=static.addressing_mode,
            virtualization_mode=static.virtualization_mode,
            mig_enabled=slow.mig_enabled,
            instances=instances,
            processes=processes,
            ecc=slow.ecc,
            recovery_action=slow.recovery_action,
            vitals=latest.vitals,
            busy_ratio=latest.busy_ratio,
            # Utilization of a framebuffer that the GPU does not have: N/A in nvidia-smi, and 0 here.
            memory_busy_ratio=latest.memory_busy_ratio if _has_framebuffer(memory) else Absent.NOT_SUPPORTED,
            limits=self._read_limits(now, processes),
            cgroups_left_out=self._limits.left_out,
            codes=dict(self._codes),
        )

    def _read_limits(
        self, now: float, processes: tuple[GpuProcess, ...] | Absent
    ) -> tuple[CgroupLimit, ...] | Absent:
        pids = () if isinstance(processes, Absent) else [process.pid for process in processes]
        return self._limits.read(now, pids, self.slow.mig_enabled is True)

    def _instances(self, now: float) -> tuple[GpuInstance, ...]:
        if self.slow.mig_enabled is True:
            return self._mig.read(now)
        self._mig.forget()
        return ()

    def _processes(
        self, memory: GpuMemory | Absent, instances: tuple[GpuInstance, ...]
    ) -> tuple[GpuProcess, ...] | Absent:
        rows = self._rows()
        capacity = process_capacity(memory, self.slow.bar1_bytes, self._validator.limits)
        if instances:
            capacity = capacity or capacity_of_instances(instances)
            rows = self._mig.process_rows() if isinstance(rows, Absent) else rows
        return self._validator.processes(rows, capacity)

    def _rows(self) -> list[Row] | Absent:
        """Return the process rows of the GPU as a whole. The MPS list is read every time once it has clients."""
        rows = self._lists.rows()
        mps = self._lists.mps.ask() if self._mps_seen else self.slow.mps
        if not isinstance(mps, Absent):
            self._mps_seen = bool(mps)
        return join_lists((rows, mps)) if self._mps_seen else rows


def _has_framebuffer(memory: GpuMemory | Absent) -> bool:
    if isinstance(memory, Absent):
        return memory is not Absent.NOT_SUPPORTED
    return memory.total_bytes > 0
