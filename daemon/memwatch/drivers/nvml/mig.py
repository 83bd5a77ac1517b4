"""A GPU that is cut into instances (MIG): which there are, what each holds, and whose processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from memwatch.drivers.nvml import binding
from memwatch.drivers.nvml.errors import GPU_WIDE, HANDLE_GONE, Code, Refused
from memwatch.drivers.nvml.process_lists import ProcessLists
from memwatch.drivers.nvml.query import Question
from memwatch.drivers.nvml.records import GpuInstance, GpuMemory
from memwatch.drivers.nvml.validation import NO_INSTANCE, Row, Sieve, by_instance, joined
from memwatch.model import Absent


class MigDevice(Struct):
    """A GPU instance and one compute instance in it. Memory belongs to the GPU instance."""

    handle: binding.Handle
    uuid: str
    lists: ProcessLists


class Instance(Struct):
    """A GPU instance with the MIG devices that share its memory; the first of them is asked for it."""

    id: int
    devices: Sequence[MigDevice]
    memory: Question[GpuMemory]


class Mig:
    """The instances of one GPU. Their handles end with every reconfiguration and are then asked for anew."""

    def __init__(
        self,
        gpu: binding.Handle,
        codes: dict[str, int],
        roster: binding.Roster,
        sieve: Sieve,
        list_every_seconds: float,
    ) -> None:
        self._gpu = gpu
        self._list_every_seconds = list_every_seconds
        self._codes = codes
        self._roster = roster
        self._sieve = sieve
        self._instances: list[Instance] = []
        self._listed_at: float | None = None

    def forget(self) -> None:
        """The handles mean nothing any more, or may not."""
        self._listed_at = None

    def read(self, now: float) -> tuple[GpuInstance, ...]:
        """Every instance. A handle that has just ended costs one new enumeration, a second one the figure."""
        if self._listed_at is None or now - self._listed_at >= self._list_every_seconds:
            self._list(now)
        try:
            return self._read()
        except Refused as refused:
            if refused.code not in HANDLE_GONE:
                raise
        self._list(now)
        with suppress(Refused):
            return self._read()
        self.forget()
        return ()

    def process_rows(self) -> list[Row] | Absent:
        """What all MIG devices list, for users who may not ask the GPU as a whole."""
        try:
            return joined([_rows_of(device, one.id) for one in self._instances for device in one.devices])
        except Refused as refused:
            if refused.code not in HANDLE_GONE:
                raise
        self.forget()
        return Absent.NOT_AVAILABLE

    def _read(self) -> tuple[GpuInstance, ...]:
        return tuple(
            [
                GpuInstance(
                    one.id, tuple([device.uuid for device in one.devices]), self._sieve.memory(one.memory.ask())
                )
                for one in self._instances
            ]
        )

    def _list(self, now: float) -> None:
        for name in [name for name in self._codes if name.startswith("mig.")]:
            del self._codes[name]
        groups = by_instance(self._found())
        self._instances = [Instance(id_, devices, self._memory(id_, devices[0])) for id_, devices in groups.items()]
        self._listed_at = now

    def _found(self) -> list[tuple[int, MigDevice]]:
        found = [self._found_at(index) for index in range(self._most())]
        return [one for one in found if one is not None]

    def _found_at(self, index: int) -> tuple[int, MigDevice] | None:
        """A MIG device with its GPU instance, or nothing: indices have gaps, they are places and not a count."""
        try:
            handle = binding.mig_handle_at(self._gpu, index)
            instance = binding.number("nvmlDeviceGetGpuInstanceId", handle)
            lists = ProcessLists(handle, self._roster, self._codes, f"mig.{instance}.")
            return instance, MigDevice(handle, binding.text("nvmlDeviceGetUUID", handle), lists)
        except Refused as refused:
            if refused.code in GPU_WIDE:
                raise
            if refused.code != Code.NOT_FOUND:
                self._codes[f"mig.device_{index}"] = refused.code
            return None

    def _most(self) -> int:
        most = Question(
            self._codes, ("mig.count", partial(binding.number, "nvmlDeviceGetMaxMigDeviceCount", self._gpu))
        ).ask()
        return 0 if isinstance(most, Absent) else most

    def _memory(self, instance: int, device: MigDevice) -> Question[GpuMemory]:
        return Question(
            self._codes,
            (f"mig.{instance}.memory_info_v2", partial(binding.memory_v2, device.handle)),
            (f"mig.{instance}.memory_info", partial(binding.memory_v1, device.handle)),
            fatal=GPU_WIDE | HANDLE_GONE,
        )


def _rows_of(device: MigDevice, instance: int) -> list[Row] | Absent:
    rows = device.lists.rows()
    if isinstance(rows, Absent):
        return rows
    return [(pid, used, instance if said == NO_INSTANCE else said) for pid, used, said in rows]
