"""Intel's Level Zero, libze_loader.so.1: https://oneapi-src.github.io/level-zero-spec (Memory and Images)."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from ctypes import POINTER, byref, c_int32, c_int64, c_size_t, c_uint32, c_void_p

from hardware.native import DEVICE, Caller, DriverApiError, GpuFacts, Memory, load_library, require_gpu

LIBRARIES = ("libze_loader.so.1",)
CONTEXT_DESC, DEVICE_MEM_ALLOC_DESC, PCI_EXT_PROPERTIES = 0xD, 0x15, 0x10008
PAGE_BYTES = 1 << 16


class _Desc(ctypes.Structure):
    """Description of a context, or of an allocation with its `ordinal`."""

    _fields_ = (("stype", c_uint32), ("next", c_void_p), ("flags", c_uint32), ("ordinal", c_uint32))


class _PciProperties(ctypes.Structure):
    _fields_ = (
        ("stype", c_uint32),
        ("next", c_void_p),
        ("domain", c_uint32),
        ("bus", c_uint32),
        ("device", c_uint32),
        ("function", c_uint32),
        ("generation", c_int32),
        ("width", c_int32),
        ("bytes_per_second", c_int64),
    )


class LevelZero:
    """Context on one GPU of the first driver."""

    kinds = (DEVICE,)

    def __init__(self, index: int) -> None:
        self._call = Caller(load_library(LIBRARIES), lambda code: f"ze_result_t 0x{code & 0xFFFFFFFF:x}")
        self._call("zeInit", c_uint32(0))
        (driver,) = self._handles("zeDriverGet")[:1] or (c_void_p(),)
        devices = self._handles("zeDeviceGet", driver) if driver else []
        require_gpu(len(devices), index, "Level Zero")
        self._count, self._device, self._context = len(devices), devices[index], c_void_p()
        self._call("zeContextCreate", driver, byref(_Desc(CONTEXT_DESC)), byref(self._context))

    def _handles(self, function: str, *owner: c_void_p) -> list[c_void_p]:
        count = c_uint32()
        self._call(function, *owner, byref(count), POINTER(c_void_p)())
        handles = (c_void_p * count.value)()
        self._call(function, *owner, byref(count), handles)
        return [c_void_p(handle) for handle in handles]

    def facts(self) -> GpuFacts:
        pci = None
        found = _PciProperties(PCI_EXT_PROPERTIES)
        with suppress(DriverApiError):
            self._call("zeDevicePciGetPropertiesExt", self._device, byref(found))
            pci = f"{found.domain:04x}:{found.bus:02x}:{found.device:02x}.{found.function:x}"
        return GpuFacts("Level Zero", "1", self._count, "Intel GPU", pci, None)

    def allocate(self, kind: str, size_bytes: int) -> Memory:
        if kind != DEVICE:
            raise DriverApiError(f"{kind} memory is not tested with Level Zero")
        size, address = c_size_t(size_bytes), c_void_p()
        description = byref(_Desc(DEVICE_MEM_ALLOC_DESC))
        self._call(
            "zeMemAllocDevice", self._context, description, size, c_size_t(PAGE_BYTES), self._device, byref(address)
        )
        self._call("zeContextMakeMemoryResident", self._context, self._device, address, size)
        return Memory(kind, size_bytes, address.value or 0)

    def free(self, memory: Memory) -> None:
        self._call("zeMemFree", self._context, c_void_p(memory.address))
