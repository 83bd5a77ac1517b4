"""Trim points: release the memory that allocators of this process keep unused, and report what each released."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from memwatch.core.model import Absent, Bytes
from memwatch.core.runtime.own_process import trim_heap
from memwatch.library.frameworks import clear_pool, pools, read_stats
from memwatch.library.host import rss_bytes
from memwatch.library.memory_pool import MemoryPool
from memwatch.library.program_safety import never_raise
from memwatch.planning.arguments import check_choice, check_text

# Default memory pools of CUDA's and HIP's stream-ordered allocators, as cudaMallocAsync and CuPy's async pool use.
#
# A driver is called only if this process has loaded and initialized it, and only for GPUs with an active context,
# so
# that no call opens a GPU.

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


# The calls that a framework's pool makes, shown to a reader who looks for what took the time.
CALLS = {
    "PyTorch mps": "torch.mps.empty_cache()",
    "PyTorch xpu": "torch.xpu.empty_cache()",
    "PyTorch": "torch.cuda.empty_cache()",
    "CuPy": "cupy.get_default_memory_pool().free_all_blocks()",
    "MLX": "mlx.core.clear_cache()",
}
NOTHING_TO_CALL = {
    "JAX": "JAX frees an array with its last reference, and keeps its pool until the process ends; "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false keeps the pool small"
}


class Released(Struct, frozen=True):
    """Memory that one allocator released. `call`: the function that was called, empty if there is none (`note`)."""

    name: str
    device: str
    released_bytes: Bytes
    call: str
    note: str = ""


def clear(framework: str = "") -> tuple[Released, ...]:
    """Release all unused memory of every allocator of this process, and return what each released.

    Garbage is collected first, since tensors in reference cycles keep their memory. PyTorch, CuPy, MLX and
    registered pools are cleared, then the pools of cudaMallocAsync and hipMallocAsync, then the heap of the C
    library. `framework`: only pools of that name, such as "CuPy". Takes milliseconds, and waits for the GPU: call
    it between phases, not in each step. Raises InvalidInputError for a framework that is not known, and no other
    error.
    """
    wanted = check_text(framework, "framework", "CuPy").lower()
    every = pools()
    if wanted:
        names = [
            *(pool.backend_name for pool in every),
            *(name.partition(" ")[0] for name in (*CALLS, *NOTHING_TO_CALL)),
        ]
        check_choice(wanted, "framework", dict.fromkeys(name.lower() for name in names), "CuPy")
    return _clear(every, wanted)


@never_raise(())
def _clear(every: Sequence[MemoryPool], wanted: str) -> tuple[Released, ...]:
    gc.collect()
    found = [pool for pool in every if wanted in ("", pool.backend_name.lower())]
    before = [read_stats(pool).reserved_bytes for pool in found]  # PyTorch clears all GPUs at once
    for pool in found:
        clear_pool(pool)
    after = [read_stats(pool).reserved_bytes for pool in found]
    cleared = [describe(pool, *pair) for pool, *pair in zip(found, before, after, strict=True)]
    return tuple(cleared) if wanted else (*cleared, *_trim_drivers(found), *_trim_heap())


def describe(pool: MemoryPool, before: Bytes, after: Bytes) -> Released:
    name = pool.backend_name
    call = CALLS.get(f"{name} {pool.device.partition(':')[0]}") or CALLS.get(name, f"{type(pool).__name__}.clear()")
    note = NOTHING_TO_CALL.get(name, "")
    return Released(name, pool.device, _fall(before, after), "" if note else call, note)


def _fall(before: Bytes, after: Bytes) -> Bytes:
    if isinstance(before, Absent):
        return before
    return after if isinstance(after, Absent) else max(0, before - after)


@never_raise(())
def _trim_drivers(found: list[MemoryPool]) -> list[Released]:
    trimmed = []
    for pool in find_driver_pools(bool(found) and _is_built_for_hip(sys.modules)):
        before = pool.reserved_bytes()
        pool.trim()
        trimmed.append(Released(pool.name, pool.device, _fall(before, pool.reserved_bytes()), pool.call))
    return trimmed


def _is_built_for_hip(modules: Mapping[str, Any]) -> bool:
    of_torch = getattr(getattr(modules.get("torch"), "version", None), "hip", None)
    of_cupy = getattr(getattr(getattr(modules.get("cupy"), "cuda", None), "runtime", None), "is_hip", False)
    return bool(of_torch or of_cupy)


@never_raise(())
def _trim_heap() -> list[Released]:
    """Return free pages of glibc's heap to the kernel. On a unified machine the GPU can use them."""
    before = rss_bytes()
    if not trim_heap():
        return []
    return [Released("C library", "cpu", _fall(before, rss_bytes()), "malloc_trim(0)")]
