"""One GPU: its properties, its process lists, its MIG instances, and a reading of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.fields import LimitReader, SlowFields, VitalFields
from memwatch.core.drivers.nvml.records import (
    GPU_WIDE,
    HANDLE_GONE,
    NO_HANDLE,
    AddressingMode,
    CgroupLimit,
    Code,
    Ecc,
    GpuInstance,
    GpuMemory,
    GpuProcess,
    GpuReading,
    GpuState,
    NvmlError,
    Query,
    VirtualizationMode,
    absent_reason,
)
from memwatch.core.drivers.nvml.validation import (
    NO_INSTANCE,
    AnswerValidator,
    Row,
    by_instance,
    capacity_of_instances,
    join_lists,
    process_capacity,
)
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Vitals, Words, known_or


class ProcessLists:
    """Compute and graphics processes. `mps` is separate: it is read every time only where MPS is in use."""

    def __init__(
        self, handle: binding.Handle, roster: binding.ProcessListBuffer, codes: dict[str, int], prefix: str = ""
    ) -> None:
        def ask(word: str, function: str) -> Query[list[Row]]:
            name = f"{prefix}{word}_processes"
            return Query(
                codes,
                (f"{name}_v3", partial(roster.v3, f"{function}_v3", handle)),
                (f"{name}_v2", partial(roster.v3, f"{function}_v2", handle)),
                (name, partial(roster.v1, function, handle)),
                fatal=GPU_WIDE | HANDLE_GONE,
            )

        self._compute = ask("compute", "nvmlDeviceGetComputeRunningProcesses")
        self._graphics = ask("graphics", "nvmlDeviceGetGraphicsRunningProcesses")
        self.mps: Query[list[Row]] = ask("mps", "nvmlDeviceGetMPSComputeRunningProcesses")

    def rows(self) -> list[Row] | Absent:
        return join_lists((self._compute.ask(), self._graphics.ask()))


class MigDevice(Struct):
    """A MIG device: a GPU instance with one of its compute instances. Memory belongs to the GPU instance."""

    handle: binding.Handle
    uuid: str
    lists: ProcessLists


class Instance(Struct):
    """A GPU instance with the MIG devices that share its memory. `memory` is read through the first of them."""

    id: int
    devices: Sequence[MigDevice]
    memory: Query[GpuMemory]


class Mig:
    """The GPU instances of one GPU. Every reconfiguration invalidates their handles; they are then listed again."""

    def __init__(
        self,
        gpu: binding.Handle,
        codes: dict[str, int],
        roster: binding.ProcessListBuffer,
        sieve: AnswerValidator,
        list_every_seconds: float,
    ) -> None:
        self._gpu = gpu
        self._list_every_seconds = list_every_seconds
        self._codes = codes
        self._roster = roster
        self._validator = sieve
        self._instances: list[Instance] = []
        self._listed_at: float | None = None

    def forget(self) -> None:
        """Discard the handles, which are or may be invalid."""
        self._listed_at = None

    def read(self, now: float) -> tuple[GpuInstance, ...]:
        """Read every instance. An invalid handle causes one new enumeration; if it fails again, return none."""
        if self._listed_at is None or now - self._listed_at >= self._list_every_seconds:
            self._list(now)
        try:
            return self._read()
        except NvmlError as rejected:
            if rejected.code not in HANDLE_GONE:
                raise
        self._list(now)
        with suppress(NvmlError):
            return self._read()
        self.forget()
        return ()

    def process_rows(self) -> list[Row] | Absent:
        """Return the processes of all MIG devices, for users who may not list those of the GPU as a whole."""
        try:
            return join_lists([_read_rows(device, one.id) for one in self._instances for device in one.devices])
        except NvmlError as rejected:
            if rejected.code not in HANDLE_GONE:
                raise
        self.forget()
        return Absent.NOT_AVAILABLE

    def _read(self) -> tuple[GpuInstance, ...]:
        return tuple(
            [
                GpuInstance(
                    one.id, tuple([device.uuid for device in one.devices]), self._validator.memory(one.memory.ask())
                )
                for one in self._instances
            ]
        )

    def _list(self, now: float) -> None:
        for name in [name for name in self._codes if name.startswith("mig.")]:
            del self._codes[name]
        groups = by_instance(self._list_devices())
        self._instances = [Instance(id_, devices, self._memory(id_, devices[0])) for id_, devices in groups.items()]
        self._listed_at = now

    def _list_devices(self) -> list[tuple[int, MigDevice]]:
        found = [self._read_device(index) for index in range(self._max_devices())]
        return [one for one in found if one is not None]

    def _read_device(self, index: int) -> tuple[int, MigDevice] | None:
        """Return (GPU instance, MIG device), or None: not every index below the maximum is in use."""
        try:
            handle = binding.mig_handle_at(self._gpu, index)
            instance = binding.number("nvmlDeviceGetGpuInstanceId", handle)
            lists = ProcessLists(handle, self._roster, self._codes, f"mig.{instance}.")
            return instance, MigDevice(handle, binding.text("nvmlDeviceGetUUID", handle), lists)
        except NvmlError as rejected:
            if rejected.code in GPU_WIDE:
                raise
            if rejected.code != Code.NOT_FOUND:
                self._codes[f"mig.device_{index}"] = rejected.code
            return None

    def _max_devices(self) -> int:
        most = Query(
            self._codes, ("mig.count", partial(binding.number, "nvmlDeviceGetMaxMigDeviceCount", self._gpu))
        ).ask()
        return known_or(most, 0)

    def _memory(self, instance: int, device: MigDevice) -> Query[GpuMemory]:
        return Query(
            self._codes,
            (f"mig.{instance}.memory_info_v2", partial(binding.memory_v2, device.handle)),
            (f"mig.{instance}.memory_info", partial(binding.memory_v1, device.handle)),
            fatal=GPU_WIDE | HANDLE_GONE,
        )


def _read_rows(device: MigDevice, instance: int) -> list[Row] | Absent:
    rows = device.lists.rows()
    if isinstance(rows, Absent):
        return rows
    return [(pid, used, instance if listed == NO_INSTANCE else listed) for pid, used, listed in rows]


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
    """A GPU with a handle. Creating or reading one raises `NvmlError` if the GPU or the library became unusable.

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
