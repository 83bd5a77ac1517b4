"""AMD's HIP runtime, libamdhip64.so: https://rocm.docs.amd.com/projects/HIP (Memory Management)."""

from __future__ import annotations

from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

from hardware.native import (
    DEVICE,
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

# The name without a number belongs to the development package; each ROCm release has its own.
LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")
HIP_HOST_MALLOC_DEFAULT = c_uint(0)


class Hip:
    """One GPU with the context of a HIP program."""

    # Where managed memory is depends on the card and the kernel (XNACK, HMM).
    kinds = (DEVICE, PINNED)

    def __init__(self, index: int) -> None:
        self._library = load_library(LIBRARIES)
        self._library.hipGetErrorString.restype = c_char_p
        self._call = Caller(self._library, self._describe)
        self._index, self._count = index, c_int()
        self._call("hipInit", c_uint(0))
        self._call("hipGetDeviceCount", byref(self._count))
        require_gpu(self._count.value, index, "HIP")
        self._call("hipSetDevice", c_int(index))

    def _describe(self, code: int) -> str:
        text = self._library.hipGetErrorString(c_int(code))
        return text.decode() if text else "unknown error"

    def facts(self) -> GpuFacts:
        name, pci, version = text_buffer(), text_buffer(), c_int()
        free, total = c_size_t(), c_size_t()
        self._call("hipDeviceGetName", name, c_int(len(name)), c_int(self._index))
        with suppress(DriverApiError):
            self._call("hipDeviceGetPCIBusId", pci, c_int(len(pci)), c_int(self._index))
        self._call("hipDriverGetVersion", byref(version))
        self._call("hipMemGetInfo", byref(free), byref(total))
        return GpuFacts(
            api="HIP",
            version=str(version.value),
            count=self._count.value,
            name=decode_text(name),
            pci=decode_text(pci) or None,
            free_bytes=free.value,
        )

    def allocate(self, kind: str, size_bytes: int) -> Memory:
        size, address = c_size_t(size_bytes), c_void_p()
        if kind == PINNED:
            self._call("hipHostMalloc", byref(address), size, HIP_HOST_MALLOC_DEFAULT)
        else:
            self._call("hipMalloc", byref(address), size)
        return Memory(kind, size_bytes, address.value or 0)

    def free(self, memory: Memory) -> None:
        self._call("hipHostFree" if memory.kind == PINNED else "hipFree", c_void_p(memory.address))
