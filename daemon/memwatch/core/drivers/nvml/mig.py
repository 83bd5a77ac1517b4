"""MIG: the GPU instances of a GPU, their memory and their processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.errors import GPU_WIDE, HANDLE_GONE, Code, NvmlError
from memwatch.core.drivers.nvml.process_lists import ProcessLists
from memwatch.core.drivers.nvml.query import Query
from memwatch.core.drivers.nvml.records import GpuInstance, GpuMemory
from memwatch.core.drivers.nvml.validation import NO_INSTANCE, AnswerValidator, Row, by_instance, join_lists
from memwatch.core.model import Absent


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
        return 0 if isinstance(most, Absent) else most

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
