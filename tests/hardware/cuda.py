"""NVIDIA's driver API, libcuda.so.1: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from hardware.native import (
    DEVICE,
    MANAGED,
    PINNED,
    Caller,
    DriverApiError,
    GpuFacts,
    Memory,
    decode_text,
    load_library,
    require_gpu,
    text_buffer,
)

LIBRARIES = ("libcuda.so.1",)
CU_MEM_ATTACH_GLOBAL = c_uint(1)


class Cuda:
    """Primary context of one GPU, as a CUDA program has it."""

    kinds = (DEVICE, MANAGED, PINNED)

    def __init__(self, index: int) -> None:
        self._library = load_library(LIBRARIES)
        self._call = Caller(self._library, self._describe)
        self._count, self._device, self._context = c_int(), c_int(), c_void_p()
        self._call("cuInit", c_uint(0))
        self._call("cuDeviceGetCount", byref(self._count))
        require_gpu(self._count.value, index, "CUDA")
        self._call("cuDeviceGet", byref(self._device), c_int(index))
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)

    def _describe(self, code: int) -> str:
        text = c_char_p()
        known = self._library.cuGetErrorString(c_int(code), byref(text)) == 0
        return text.value.decode() if known and text.value else "unknown error"

    def facts(self) -> GpuFacts:
        name, pci, version = text_buffer(), text_buffer(), c_int()
        free, total = c_size_t(), c_size_t()
        self._call("cuDeviceGetName", name, c_int(len(name)), self._device)
        with suppress(DriverApiError):  # a Tegra's own GPU is no PCI device
            self._call("cuDeviceGetPCIBusId", pci, c_int(len(pci)), self._device)
        self._call("cuDriverGetVersion", byref(version))
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return GpuFacts(
            api="CUDA",
            version=f"{version.value // 1000}.{version.value % 1000 // 10}",
            count=self._count.value,
            name=decode_text(name),
            pci=decode_text(pci) or None,
            free_bytes=free.value,
        )

    def allocate(self, kind: str, size_bytes: int) -> Memory:
        size, address = c_size_t(size_bytes), c_uint64()
        if kind == PINNED:
            self._call("cuMemHostAlloc", byref(address), size, c_uint(0))
        elif kind == MANAGED:
            self._call("cuMemAllocManaged", byref(address), size, CU_MEM_ATTACH_GLOBAL)
            self._touch(address, size)
        else:
            self._call("cuMemAlloc_v2", byref(address), size)
        return Memory(kind, size_bytes, address.value)

    def _touch(self, address: c_uint64, size: c_size_t) -> None:
        """Write on the GPU: managed memory has no pages before its first use."""
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), size)
        self._call("cuCtxSynchronize")

    def free(self, memory: Memory) -> None:
        if memory.kind == PINNED:
            self._call("cuMemFreeHost", c_void_p(memory.address))
        else:
            self._call("cuMemFree_v2", c_uint64(memory.address))
