"""Default memory pools of CUDA's and HIP's stream-ordered allocators, as cudaMallocAsync and CuPy's async pool use.

A driver is called only if this process has loaded and initialized it, and only for GPUs with an active context, so
that no call opens a GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

MAPS = Path("/proc/self/maps")
LOADED = re.compile(r"(/\S*/(libcuda|libamdhip64)\.so[.\d]*)$", re.MULTILINE)
# CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, hipMemPoolAttrReservedMemCurrent.
RESERVED_NOW = 5
# A count beyond that is no answer of a driver.
MAX_GPUS = 1024


class Calls(Struct, frozen=True):
    """Names of one driver's functions."""

    count: str
    handle: str
    state: str
    pool: str
    attribute: str
    trim: str


CUDA = Calls(
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDevicePrimaryCtxGetState",
    "cuDeviceGetDefaultMemPool",
    "cuMemPoolGetAttribute",
    "cuMemPoolTrimTo",
)
HIP = Calls(
    "hipGetDeviceCount",
    "hipDeviceGet",
    "hipDevicePrimaryCtxGetState",
    "hipDeviceGetDefaultMemPool",
    "hipMemPoolGetAttribute",
    "hipMemPoolTrimTo",
)
DRIVERS = {"libcuda": CUDA, "libamdhip64": HIP}


class DriverPool:
    """Default pool of one GPU that holds memory."""

    def __init__(self, library: ctypes.CDLL, calls: Calls, index: int, pool: ctypes.c_void_p) -> None:
        self._library, self._calls, self._pool = library, calls, pool
        self.device: str = f"cuda:{index}"
        self.name: str = "CUDA driver" if calls is CUDA else "HIP driver"
        self.call: str = f"{calls.trim}(pool, 0)"

    def reserved_bytes(self) -> int:
        value = ctypes.c_uint64()
        failed = self._call(self._calls.attribute, self._pool, ctypes.c_int(RESERVED_NOW), ctypes.byref(value))
        return 0 if failed else value.value

    def trim(self) -> None:
        """Return all memory to the driver that no allocation uses."""
        self._call(self._calls.trim, self._pool, ctypes.c_size_t(0))

    def _call(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, name)(*arguments))


def find_driver_pools(may_call_hip: bool) -> list[DriverPool]:
    """Return the pools that hold memory. `may_call_hip`: HIP is in use, as its calls would initialize it."""
    found = [pool for library, calls in _loaded(may_call_hip) for pool in _list_pools(library, calls)]
    return [pool for pool in found if pool.reserved_bytes()]


def _loaded(may_call_hip: bool) -> Iterator[tuple[ctypes.CDLL, Calls]]:
    """Yield the drivers that this process has loaded. None is loaded here."""
    try:
        maps = MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for path, name in dict.fromkeys(LOADED.findall(maps)):
        if name == "libcuda" or may_call_hip:
            try:
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                continue
            if all(hasattr(library, function) for function in astuple(DRIVERS[name])):
                yield library, DRIVERS[name]


def _list_pools(library: ctypes.CDLL, calls: Calls) -> Iterator[DriverPool]:
    count = ctypes.c_int()
    if getattr(library, calls.count)(ctypes.byref(count)):
        return  # not initialized
    for index in range(count.value if count.value <= MAX_GPUS else 0):
        pool = _find_pool(library, calls, index)
        if pool is not None:
            yield DriverPool(library, calls, index, pool)


def _find_pool(library: ctypes.CDLL, calls: Calls, index: int) -> ctypes.c_void_p | None:
    """Return a GPU's default pool, None without an active context."""
    device, flags, active, pool = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
    failed = (
        getattr(library, calls.handle)(ctypes.byref(device), ctypes.c_int(index))
        or getattr(library, calls.state)(device, ctypes.byref(flags), ctypes.byref(active))
        or not active.value
        or getattr(library, calls.pool)(ctypes.byref(pool), device)
    )
    return None if failed else pool
