"""Trim points: release the memory that allocators of this process keep unused, and report what each released."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from memwatch.core.model import Absent, Bytes
from memwatch.core.runtime.heap import trim_heap
from memwatch.library.driver_pools import find_driver_pools
from memwatch.library.frameworks import clear_pool, pools, read_stats
from memwatch.library.host import rss_bytes
from memwatch.library.memory_pool import MemoryPool
from memwatch.library.never_raise import never_raise

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


@never_raise(())
def clear(framework: str = "") -> tuple[Released, ...]:
    """Release all unused memory of every allocator of this process, and return what each released. Never raises.

    Garbage is collected first, since tensors in reference cycles keep their memory. PyTorch, CuPy, MLX and
    registered pools are cleared, then the pools of cudaMallocAsync and hipMallocAsync, then the heap of the C
    library. `framework`: only pools of that name, such as "CuPy". Takes milliseconds, and waits for the GPU: call
    it between phases, not in each step.
    """
    gc.collect()
    found = [pool for pool in pools() if framework.lower() in ("", pool.backend_name.lower())]
    before = [read_stats(pool).reserved_bytes for pool in found]  # PyTorch clears all GPUs at once
    for pool in found:
        clear_pool(pool)
    after = [read_stats(pool).reserved_bytes for pool in found]
    cleared = [describe(pool, *pair) for pool, *pair in zip(found, before, after, strict=True)]
    return tuple(cleared) if framework else (*cleared, *_trim_drivers(found), *_trim_heap())


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
