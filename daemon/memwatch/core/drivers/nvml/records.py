"""One reading of NVML, as records that are sent through a pipe. They are interpreted in `accounting`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from memwatch.core.model import Absent, Bytes, Vitals, Words

SleepStatus = Literal["suspended", "idle"]
GpuState = Literal["ok", "lost", "needs_reset", "missing"]
AddressingMode = Literal["none", "hmm", "ats"]
VirtualizationMode = Literal["none", "passthrough", "vgpu_guest", "vgpu_host", "vsga_host"]


class GpuMemory(Struct, frozen=True):
    """nvmlDeviceGetMemoryInfo in bytes. Version 2: used + free + reserved = total.

    Version 1 (drivers without v2): `used_bytes` includes reserved memory, and `reserved_bytes` is absent.
    `is_estimated`: the driver's figures contradict each other, and one of them follows from the others.
    """

    version: int
    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: Bytes
    is_estimated: bool = False


class GpuProcess(Struct, frozen=True):
    """A process in one or more of a GPU's process lists: the maximum over the lists, never their sum.

    `used_bytes` is absent where the driver lists the process without its memory (WDDM, WSL2).
    """

    pid: int
    used_bytes: Bytes
    instance: int | None = None


class GpuInstance(Struct, frozen=True):
    """A MIG GPU instance, listed once regardless of how many compute instances share its memory."""

    id: int
    uuids: tuple[str, ...]
    memory: GpuMemory | Absent


class Ecc(Struct, frozen=True):
    """Memory errors since the driver was loaded, and rows that were remapped permanently."""

    corrected: int | Absent = Absent.NOT_SUPPORTED
    uncorrected: int | Absent = Absent.NOT_SUPPORTED
    remapped_correctable: int | Absent = Absent.NOT_SUPPORTED
    remapped_uncorrectable: int | Absent = Absent.NOT_SUPPORTED
    remapping_pending: bool | Absent = Absent.NOT_SUPPORTED
    remapping_failed: bool | Absent = Absent.NOT_SUPPORTED


class CgroupLimit(Struct, frozen=True):
    """A limit that the driver enforces on a cgroup: allocations beyond `hard_bytes` fail.

    `soft_bytes` are guaranteed. `own`: memwatchd runs inside this cgroup.
    """

    cgroup: str
    soft_bytes: int
    hard_bytes: int
    used_bytes: int
    own: bool = False


class Asleep(Struct, frozen=True):
    """A GPU that is not called: it is suspended, or idle and released so that it can be suspended.

    `since_unix` is absent if it was suspended before the helper process looked for the first time.
    """

    status: SleepStatus
    since_unix: float | Absent


class GpuReading(Struct, frozen=True):
    """One GPU. `codes` holds the NVML return code of each call that failed.

    `limits` is absent where the kernel's dmem controller has the limits, and where there can be none. While a GPU
    is `asleep`, its other fields are of the last reading: identity and size of memory are still true.
    """

    index: int
    uuid: Words
    pci: Words
    name: Words
    state: GpuState = "ok"
    memory: GpuMemory | Absent = Absent.NOT_AVAILABLE
    bar1_bytes: Bytes = Absent.NOT_AVAILABLE
    numa_node: int | Absent = Absent.NOT_SUPPORTED
    addressing_mode: AddressingMode | Absent = Absent.NOT_SUPPORTED
    virtualization_mode: VirtualizationMode | Absent = Absent.NOT_SUPPORTED
    mig_enabled: bool | Absent = Absent.NOT_SUPPORTED
    instances: tuple[GpuInstance, ...] = ()
    processes: tuple[GpuProcess, ...] | Absent = Absent.NOT_AVAILABLE
    ecc: Ecc = Ecc()
    recovery_action: Words = Absent.NOT_SUPPORTED
    vitals: Vitals = Vitals.absent(Absent.NOT_AVAILABLE)
    busy_ratio: float | Absent = Absent.NOT_AVAILABLE
    memory_busy_ratio: float | Absent = Absent.NOT_AVAILABLE
    limits: tuple[CgroupLimit, ...] | Absent = Absent.NOT_SUPPORTED
    cgroups_left_out: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)
    asleep: Asleep | None = None


class Xid(Struct, frozen=True):
    """An XID (a driver error code) of one GPU, its number of occurrences and the time of the last (Unix time)."""

    gpu_uuid: str
    code: int
    count: int
    last_seen_unix: float


class MissingGpu(Struct, frozen=True):
    """A GPU of an earlier reading that the driver no longer lists."""

    uuid: str
    pci: Words
    name: Words


class NvmlReading(Struct, frozen=True):
    """One reading. `rejected` counts, by kind, values and lists that were implausible and left out."""

    driver: Words
    cuda: Words
    gpus: tuple[GpuReading, ...]
    missing: tuple[MissingGpu, ...] = ()
    xids: tuple[Xid, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)


class NvmlFailure(Struct, frozen=True):
    """A failed reading. `reason`: no_library, no_driver, no_device, needs_new_process or failed."""

    reason: str
    text: str
    code: int | None = None
