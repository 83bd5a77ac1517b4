"""One reading of NVML, as records that are sent through a pipe. They are interpreted in `accounting`.

Return codes have the reason that each gives for a missing value, and queries act on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Generic, Literal, TypeVar

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


class Code(IntEnum):
    """Return codes of nvml.h (API v13). Those that are not handled individually mean "not available"."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


_CODES = frozenset(Code)
# The whole library is unusable.
LIBRARY_WIDE = frozenset((Code.UNINITIALIZED, Code.LIB_RM_VERSION_MISMATCH))
# One GPU is unusable, for every call.
GPU_WIDE = frozenset((Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND)) | LIBRARY_WIDE
# The same, if the call's only argument is the handle: its device no longer exists.
HANDLE_GONE = frozenset((Code.INVALID_ARGUMENT, Code.NOT_FOUND))
# A GPU that gives no handle for one of these does not work: the driver has no better word for one that is off the
# bus when it starts (open-gpu-kernel-modules#387, dcgm-exporter#604).
NO_HANDLE = frozenset((Code.UNKNOWN, Code.IRQ_ISSUE, Code.INSUFFICIENT_POWER))
# The driver is older or newer than this version of the call. An older version may work.
OTHER_FORM = frozenset((Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED))

_REASONS: dict[int, Absent] = {
    Code.NOT_SUPPORTED: Absent.NOT_SUPPORTED,
    Code.NO_PERMISSION: Absent.NOT_PERMITTED,
    Code.OPERATING_SYSTEM: Absent.NOT_PERMITTED,
    **dict.fromkeys(OTHER_FORM, Absent.NOT_SUPPORTED),
}
_FAILURES: dict[int, tuple[str, str]] = {
    Code.LIBRARY_NOT_FOUND: ("no_library", "libnvidia-ml.so.1 cannot be loaded: no NVIDIA driver is installed"),
    Code.DRIVER_NOT_LOADED: ("no_driver", "the NVIDIA kernel driver is not loaded; `modprobe nvidia` loads it"),
    Code.LIB_RM_VERSION_MISMATCH: (
        "needs_new_process",
        "the NVIDIA kernel driver has another version than the library in this process, as after an upgrade",
    ),
}


class NvmlError(Exception):
    """An NVML call failed with `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(name_of(code))
        self.code = code


def name_of(code: int) -> str:
    """Return the name of a return code in nvml.h: "NVML_ERROR_NOT_SUPPORTED"."""
    return f"NVML_ERROR_{Code(code).name}" if code in _CODES else f"NVML error {code}"


def absent_reason(code: int) -> Absent:
    """Return why a value is missing, from the return code of its call."""
    return _REASONS.get(code, Absent.NOT_AVAILABLE)


def build_failure(code: int) -> NvmlFailure:
    """Return the failure for a code that concerns the library as a whole."""
    reason, text = _FAILURES.get(code, ("failed", "NVML failed"))
    return NvmlFailure(reason, f"{text} ({name_of(code)})", code)


T = TypeVar("T")


class Query(Generic[T]):
    """A value and the calls (`forms`) that can return it, each with its name, newest first.

    An unsupported call is not repeated. `codes` holds the return code of each call that failed; the entry is
    removed when the call works again. Codes in `fatal` do not concern the value alone: they are raised.
    """

    def __init__(
        self,
        codes: dict[str, int],
        *forms: tuple[str, Callable[[], T]],
        fatal: frozenset[Code] = GPU_WIDE,
    ) -> None:
        self._codes = codes
        self._forms = list(forms)
        self._fatal = fatal

    def ask(self) -> T | Absent:
        while self._forms:
            name, form = self._forms[0]
            try:
                answer = form()
            except NvmlError as rejected:
                self._codes[name] = rejected.code
                if rejected.code in self._fatal:
                    raise
                if rejected.code not in OTHER_FORM:
                    return self._without(rejected.code)
                del self._forms[0]
            else:
                if name in self._codes:
                    del self._codes[name]
                return answer
        return Absent.NOT_SUPPORTED

    def _without(self, code: int) -> Absent:
        if code == Code.NOT_SUPPORTED:
            self._forms.clear()
        return absent_reason(code)
