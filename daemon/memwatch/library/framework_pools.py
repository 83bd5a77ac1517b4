"""Allocators of PyTorch, CuPy and JAX, if the caller has imported them and uses a GPU through them.

No framework is imported here, and no call opens a GPU: a CUDA context takes 0.3 GiB, and JAX reserves three
quarters of a GPU when it starts its client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memwatch.library.host import host
from memwatch.library.memory_pool import CachingPool, MemoryPool, PoolStats
from memwatch.library.never_raise import never_raise
from memwatch.model import Absent, Bytes


class TorchPool(CachingPool):
    """PyTorch's caching allocator on one GPU, CUDA or ROCm. `torch`: the module that the caller imported."""

    backend_name = "PyTorch"

    def __init__(self, torch: Any, index: int) -> None:  # noqa: ANN401  a module
        self._torch = torch
        self._index = index
        self.device = f"cuda:{index}"

    def stats(self) -> PoolStats:
        found = self._torch.cuda.memory_stats_as_nested_dict(self._index)

        def now(name: str, which: str = "current") -> Bytes:
            value = found.get(name, {}).get("all", {}).get(which)
            return value if isinstance(value, int) else Absent.NOT_AVAILABLE

        return PoolStats(
            allocated_bytes=now("allocated_bytes"),
            reserved_bytes=now("reserved_bytes"),
            active_bytes=now("active_bytes"),
            inactive_split_bytes=now("inactive_split_bytes"),
            peak_bytes=now("allocated_bytes", "peak"),
            allocations=now("allocation", "allocated"),
            retries=found.get("num_alloc_retries", Absent.NOT_AVAILABLE),
            ooms=found.get("num_ooms", Absent.NOT_AVAILABLE),
        )

    def total(self) -> Bytes:
        return int(self._torch.cuda.get_device_properties(self._index).total_memory) or Absent.NOT_AVAILABLE

    def free(self) -> Bytes:
        """Return the free bytes. On a unified machine, available System RAM, as CUDA counts page cache as used."""
        properties = self._torch.cuda.get_device_properties(self._index)
        if getattr(properties, "is_integrated", 0):
            return host.available_bytes()
        return int(self._torch.cuda.mem_get_info(self._index)[0])

    def clear(self) -> None:
        self._torch.cuda.empty_cache()


class CupyPool(CachingPool):
    """CuPy's default memory pool on one GPU."""

    backend_name = "CuPy"

    def __init__(self, cupy: Any, index: int = 0) -> None:  # noqa: ANN401  a module
        self._cupy = cupy
        self._index = index
        self.device = f"cuda:{index}"

    def stats(self) -> PoolStats:
        pool = self._cupy.get_default_memory_pool()
        return PoolStats(allocated_bytes=int(pool.used_bytes()), reserved_bytes=int(pool.total_bytes()))

    def total(self) -> Bytes:
        return int(self._cupy.cuda.runtime.memGetInfo()[1]) or Absent.NOT_AVAILABLE

    def free(self) -> Bytes:
        """Return the free bytes. On a unified machine, available System RAM, as for PyTorch."""
        runtime = self._cupy.cuda.runtime
        if runtime.getDeviceProperties(self._index).get("integrated"):
            return host.available_bytes()
        return int(runtime.memGetInfo()[0])

    def clear(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()


class JaxPool(CachingPool):
    """JAX's allocator on one GPU, read with `Device.memory_stats`. It releases no memory while the process runs."""

    backend_name = "JAX"

    def __init__(self, device: Any) -> None:  # noqa: ANN401  jax.Device
        self._device = device
        self.device = f"cuda:{device.local_hardware_id}" if device.platform == "gpu" else str(device)

    def _figure(self, *names: str) -> int | Absent:
        """Return the first known value. Values that an allocator does not count are missing or -1."""
        found = self._device.memory_stats() or {}
        known = (found.get(name) for name in names)
        return next((one for one in known if isinstance(one, int) and one >= 0), Absent.NOT_SUPPORTED)

    def stats(self) -> PoolStats:
        return PoolStats(
            allocated_bytes=self._figure("bytes_in_use"),
            reserved_bytes=self._figure("pool_bytes", "bytes_in_use"),
            peak_bytes=self._figure("peak_bytes_in_use"),
            allocations=self._figure("num_allocs"),
        )

    def total(self) -> Bytes:
        return self._figure("bytes_limit") or Absent.NOT_AVAILABLE

    def free(self) -> Bytes:
        whole, used = self.total(), self._figure("bytes_in_use")
        if isinstance(whole, Absent) or isinstance(used, Absent):
            return Absent.NOT_AVAILABLE
        return max(0, whole - used)

    def clear(self) -> None:
        """Do nothing: JAX frees an array with its last reference and keeps its pool."""


_torch_pools: list[MemoryPool] = []


def find_framework_pools(modules: Mapping[str, Any]) -> list[MemoryPool]:
    """Return the pools of the imported frameworks. `modules`: the process's sys.modules."""
    return [
        *_find_torch_pools(modules.get("torch")),
        *_find_cupy_pools(modules.get("cupy")),
        *_find_jax_pools(modules.get("jax"), modules.get("jax._src.xla_bridge")),
    ]


@never_raise(())
def _find_torch_pools(torch: Any) -> list[MemoryPool]:  # noqa: ANN401
    # Only if CUDA is initialized: earlier calls would create a context.
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    if not _torch_pools:
        _torch_pools.extend(TorchPool(torch, index) for index in range(cuda.device_count()))
    return _torch_pools


def _find_cupy_pools(cupy: Any) -> list[MemoryPool]:  # noqa: ANN401
    # Only if its pool is in use: without a GPU, CuPy can be imported but its calls raise.
    if not hasattr(cupy, "get_default_memory_pool"):
        return []
    try:
        used = cupy.get_default_memory_pool().total_bytes() > 0
        index = int(cupy.cuda.runtime.getDevice()) if used else 0
    except Exception:  # noqa: BLE001  CuPy's exception classes are not imported here
        return []
    return [CupyPool(cupy, index)] if used else []


@never_raise(())
def _find_jax_pools(jax: Any, bridge: Any) -> list[MemoryPool]:  # noqa: ANN401
    # Only if its clients are running: listing devices earlier would start them.
    if jax is None or not getattr(bridge, "backends_are_initialized", bool)():
        return []
    return [JaxPool(device) for device in jax.local_devices() if device.platform == "gpu"]
