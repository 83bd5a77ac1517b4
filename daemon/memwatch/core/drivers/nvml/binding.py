"""NVML calls that return plain values. Every failure is raised as `NvmlError` with NVML's return code.

The vendor's Python binding loads the library and defines its structures. Its wrappers are not used: they decode
names strictly, call every process list twice, and raise errors of three families, one of them unhashable.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p, cast, create_string_buffer
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from memwatch.core.drivers.nvml.records import AddressingMode, Code, GpuMemory, NvmlError, VirtualizationMode
from memwatch.core.drivers.nvml.validation import NO_INSTANCE, Row
from memwatch.core.model import Absent, Words

W = TypeVar("W")
Handle = Any  # an opaque pointer

XID: int = pynvml.nvmlEventTypeXidCriticalError
MIG_CHANGE: int = pynvml.nvmlEventMigConfigChange

_ADDRESSING_MODES: dict[int, AddressingMode] = {0: "none", 1: "hmm", 2: "ats"}
_VIRTUALIZATION_MODES: dict[int, VirtualizationMode] = dict(
    enumerate(("none", "passthrough", "vgpu_guest", "vgpu_host", "vsga_host"))
)
_RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
SM_CLOCK: int = pynvml.NVML_CLOCK_SM
MEMORY_CLOCK: int = pynvml.NVML_CLOCK_MEM
_TEMPERATURE_V1 = 0x100000C
_GPU_SENSOR = pynvml.NVML_TEMPERATURE_GPU
_SINCE_DRIVER_LOAD = 0  # nvmlEccCounterType_t: volatile


def call(name: str, *arguments: object) -> None:
    """Call one function of the library."""
    try:
        function = getattr(pynvml.nvmlLib, name)
    except AttributeError:
        raise NvmlError(Code.FUNCTION_NOT_FOUND if pynvml.nvmlLib else Code.UNINITIALIZED) from None
    code = function(*arguments)
    if code:
        raise NvmlError(code)


def initialize(attach: bool = True) -> None:
    """Load the library unless it is loaded, and open the driver.

    Unless `attach` is true, no GPU is opened before its handle is requested. Otherwise all are, which resumes
    suspended ones.
    """
    try:
        pynvml.nvmlInitWithFlags(0 if attach else pynvml.NVML_INIT_FLAG_NO_ATTACH)
    except pynvml.NVMLError as error:
        raise NvmlError(error.value) from None


def shut_down() -> None:
    """Close the driver. The library stays loaded until the process ends."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise NvmlError(error.value) from None


def number(name: str, *arguments: object, kind: Any = c_uint) -> int:  # noqa: ANN401  a ctypes type
    """Return the integer that a call writes to its last argument."""
    answer = kind()
    call(name, *arguments, byref(answer))
    return int(answer.value)


def text(name: str, *arguments: object) -> str:
    """Return the text that a call writes. Invalid UTF-8 is replaced: the text is only displayed."""
    buffer = create_string_buffer(96)
    call(name, *arguments, buffer, c_uint(len(buffer)))
    return buffer.value.decode(errors="replace")


def cuda_version() -> str:
    version = number("nvmlSystemGetCudaDriverVersion_v2", kind=c_int)
    return f"{version // 1000}.{version % 1000 // 10}"


def handle_at(index: int) -> Handle:
    handle = pynvml.c_nvmlDevice_t()
    call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
    return handle


def handle_by_pci(address: str) -> Handle:
    """Return the handle of the GPU at a PCI address. No other GPU is opened for it."""
    handle = pynvml.c_nvmlDevice_t()
    call("nvmlDeviceGetHandleByPciBusId_v2", c_char_p(address.encode()), byref(handle))
    return handle


def mig_handle_at(parent: Handle, index: int) -> Handle:
    handle = pynvml.c_nvmlDevice_t()
    call("nvmlDeviceGetMigDeviceHandleByIndex", parent, c_uint(index), byref(handle))
    return handle


def handle_address(handle: Handle) -> int:
    """Return the handle's address, which identifies it."""
    return cast(handle, c_void_p).value or 0


def pci_address(handle: Handle) -> str:
    info = pynvml.nvmlPciInfo_t()
    call("nvmlDeviceGetPciInfo_v3", handle, byref(info))
    offset = pynvml.nvmlPciInfo_t.busId.offset
    return bytes(info)[offset:].split(b"\0")[0].decode(errors="replace")


def memory_v2(handle: Handle) -> GpuMemory:
    info = pynvml.c_nvmlMemory_v2_t(pynvml.nvmlMemory_v2)
    call("nvmlDeviceGetMemoryInfo_v2", handle, byref(info))
    return GpuMemory(2, info.total, info.used, info.free, info.reserved)


def memory_v1(handle: Handle) -> GpuMemory:
    info = pynvml.c_nvmlMemory_t()
    call("nvmlDeviceGetMemoryInfo", handle, byref(info))
    return GpuMemory(1, info.total, info.used, info.free, Absent.NOT_SUPPORTED)


def bar1_size(handle: Handle) -> int:
    info = pynvml.c_nvmlBAR1Memory_t()
    call("nvmlDeviceGetBAR1MemoryInfo", handle, byref(info))
    return int(info.bar1Total)


def numa_node(handle: Handle) -> int:
    """Return the NUMA node that a GPU's memory forms. Drivers without one fail the call or return -1."""
    node = number("nvmlDeviceGetNumaNodeId", handle, kind=c_int)
    if node < 0:
        raise NvmlError(Code.NOT_SUPPORTED)
    return node


def addressing_mode(handle: Handle) -> AddressingMode:
    info = pynvml.c_nvmlDeviceAddressingMode_t()
    call("nvmlDeviceGetAddressingMode", handle, byref(info))
    return _known(_ADDRESSING_MODES, info.value)


def virtualization_mode(handle: Handle) -> VirtualizationMode:
    return _known(_VIRTUALIZATION_MODES, number("nvmlDeviceGetVirtualizationMode", handle))


def _known(words: Mapping[int, W], value: int) -> W:
    """Return the word for a number. A newer driver may use numbers that are not listed here."""
    if value not in words:
        raise NvmlError(Code.UNKNOWN)
    return words[value]


def mig_enabled(handle: Handle) -> bool:
    current, pending = c_uint(), c_uint()
    call("nvmlDeviceGetMigMode", handle, byref(current), byref(pending))
    return bool(current.value)


def ecc_errors(handle: Handle, uncorrected: bool) -> int:
    arguments = (handle, c_uint(uncorrected), c_uint(_SINCE_DRIVER_LOAD))
    return number("nvmlDeviceGetTotalEccErrors", *arguments, kind=c_ulonglong)


def remapped_rows(handle: Handle) -> tuple[int, int, bool, bool]:
    """Return (correctable rows, uncorrectable rows, remapping pending until a reset, remapping failed)."""
    rows = [c_uint() for _ in range(4)]
    call("nvmlDeviceGetRemappedRows", handle, *[byref(row) for row in rows])
    return rows[0].value, rows[1].value, bool(rows[2].value), bool(rows[3].value)


def recovery_action(handle: Handle) -> Words:
    field = pynvml.c_nvmlFieldValue_t(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
    call("nvmlDeviceGetFieldValues", handle, c_int(1), byref(field))
    if field.nvmlReturn:
        raise NvmlError(field.nvmlReturn)
    action = int(field.value.uiVal)
    return _RECOVERY_ACTIONS[action] if action < len(_RECOVERY_ACTIONS) else f"action_{action}"


def temperature(handle: Handle) -> int:
    """Return the temperature of the GPU in degrees Celsius."""
    # nvmlTemperature_v1_t: version, sensor, degrees. Lists of values need no record of the binding.
    info = (c_int * 3)(_TEMPERATURE_V1, _GPU_SENSOR, 0)
    call("nvmlDeviceGetTemperatureV", handle, byref(info))
    return info[2]


def temperature_v0(handle: Handle) -> int:
    """Return the temperature by the call of drivers before 575, which CUDA 14 will remove."""
    return number("nvmlDeviceGetTemperature", handle, c_uint(_GPU_SENSOR))


def clock_hertz(handle: Handle, domain: int) -> int:
    return number("nvmlDeviceGetClockInfo", handle, c_uint(domain)) * 1_000_000


def utilization_percent(handle: Handle) -> tuple[int, int]:
    """Return percent of time with the GPU busy, and with its memory read or written."""
    rates = pynvml.c_nvmlUtilization_t()
    call("nvmlDeviceGetUtilizationRates", handle, byref(rates))
    return int(rates.gpu), int(rates.memory)


class ProcessListBuffer:
    """Buffer for process lists, kept between calls: one call per list, where the vendor's binding makes two."""

    # Drivers 535.54 to 535.98 write 32 bytes per 24-byte record; the larger buffer prevents an overflow.
    _MAX_RECORD_BYTES = 32

    def __init__(self) -> None:
        self._make_room(128)

    def _make_room(self, room: int) -> None:
        self._room = room
        self._buffer = create_string_buffer(room * self._MAX_RECORD_BYTES)

    def v3(self, name: str, handle: Handle) -> list[Row]:
        """Read a list of version 2 or 3. The compute instance, the last field, is skipped: it owns no memory."""
        return self._read(name, handle, "IQI4x")

    def v1(self, name: str, handle: Handle) -> list[Row]:
        """Read a list from a call without a version suffix, which does not support MIG."""
        return [(pid, used, NO_INSTANCE) for pid, used in self._read(name, handle, "IQ")]

    def _read(self, name: str, handle: Handle, layout: str) -> list[Any]:
        count = c_uint(self._room)
        try:
            call(name, handle, byref(count), self._buffer)
        except NvmlError as rejected:
            if rejected.code != Code.INSUFFICIENT_SIZE:
                raise
            self._make_room(max(count.value * 2, self._room))
            count.value = self._room
            call(name, handle, byref(count), self._buffer)
        records = min(count.value, self._room) * struct.calcsize(layout)
        return list(struct.iter_unpack(layout, memoryview(self._buffer)[:records]))
