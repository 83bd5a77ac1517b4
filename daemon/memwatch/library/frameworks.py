"""Allocators of this process: registered ones, and those of PyTorch, CuPy, JAX and MLX on a GPU.

No framework is imported here: those count that the caller has imported. No call opens a GPU: a CUDA context takes
0.3 GiB, and JAX reserves three quarters of a GPU when it starts its client.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from memwatch.core.model import Absent, Bytes
from memwatch.library.host import host
from memwatch.library.memory_pool import CachingPool, MemoryPool, PoolStats, count_fallbacks, greater
from memwatch.library.program_safety import importing, never_raise
from memwatch.planning.arguments import InvalidInputError, check_members, describe

if TYPE_CHECKING:
    from memwatch.library.cupy_peaks import CupyPeaks

# Allocators of Apple's frameworks: MLX, and PyTorch on Metal (MPS). Both allocate from System RAM.


class MpsPool(CachingPool):
    """PyTorch's allocator on Metal, which counts no peak."""

    backend_name: str = "PyTorch"
    device: str = "mps"

    def __init__(self, torch: Any) -> None:  # noqa: ANN401  a module
        self._mps = torch.mps

    def stats(self) -> PoolStats:
        return PoolStats(
            allocated_bytes=int(self._mps.current_allocated_memory()),
            reserved_bytes=int(self._mps.driver_allocated_memory()),
        )

    def total(self) -> Bytes:
        ask = getattr(self._mps, "recommended_max_memory", None)
        return Absent.NOT_SUPPORTED if ask is None else int(ask()) or Absent.NOT_AVAILABLE

    def free(self) -> Bytes:
        return host.available_bytes()

    def clear(self) -> None:
        self._mps.empty_cache()


class MlxPool(CachingPool):
    """MLX's allocator, on Metal or on the CPU. Its peak counts the bytes of arrays, not of its cache."""

    backend_name: str = "MLX"
    device: str = "unified"

    def __init__(self, mlx: Any) -> None:  # noqa: ANN401  mlx.core
        self._mlx = mlx
        self._kept = self._last = 0

    def counters(self) -> PoolStats:
        active, peak = int(self._mlx.get_active_memory()), int(self._mlx.get_peak_memory())
        if peak < self._last:  # only a reset by the program makes it fall
            self._kept = 0
        self._last = peak
        cached = int(self._mlx.get_cache_memory())
        return PoolStats(allocated_bytes=active, reserved_bytes=active + cached, peak_bytes=peak)

    def stats(self) -> PoolStats:
        """Return the statistics. The peak is that which the program would have without resets by `reset_peak`."""
        found = self.counters()
        return PoolStats(found.allocated_bytes, found.reserved_bytes, peak_bytes=greater(self._last, self._kept))

    def reset_peak(self) -> bool:
        self.counters()
        self._kept, self._last = max(self._kept, self._last), 0
        self._mlx.reset_peak_memory()
        return True

    def total(self) -> Bytes:
        """Return the size of System RAM: the working set of Metal is not asked for, as that opens the GPU."""
        ram = host.ram()
        return ram if isinstance(ram, Absent) else ram.total_bytes

    def free(self) -> Bytes:
        return host.available_bytes()

    def clear(self) -> None:
        self._mlx.clear_cache()


_mlx_pools: list[MemoryPool] = []


@never_raise(())
def find_mps_pools(torch: Any) -> list[MemoryPool]:  # noqa: ANN401
    # Only with memory in use, as for CuPy.
    mps = getattr(torch, "mps", None)
    if mps is None or not torch.backends.mps.is_available() or not mps.current_allocated_memory():
        return []
    return [MpsPool(torch)]


@never_raise(())
def find_mlx_pools(mlx: Any) -> list[MemoryPool]:  # noqa: ANN401
    # Not in MLX's build for CUDA, where a question creates a context. Older versions count in mlx.core.metal.
    if not hasattr(mlx, "reset_peak_memory") or is_cuda_build(mlx):
        return []
    if not _mlx_pools:
        _mlx_pools.append(MlxPool(mlx))
    return _mlx_pools


def is_cuda_build(mlx: Any) -> bool:  # noqa: ANN401
    cuda = getattr(mlx, "cuda", None)
    return cuda is not None and bool(cuda.is_available())


class TorchPool(CachingPool):
    """PyTorch's caching allocator on one GPU. `torch`: the module that the caller imported.

    `kind`: its module, cuda (also for ROCm) or xpu.
    """

    backend_name = "PyTorch"

    def __init__(self, torch: Any, index: int, kind: str = "cuda") -> None:  # noqa: ANN401  a module
        self._api = getattr(torch, kind)
        self._index = index
        self.device: str = f"{kind}:{index}"
        self._kept = self._last = (0, 0)

    def stats(self) -> PoolStats:
        """Return the statistics. Peaks are those that the program would have without resets by `reset_peak`."""
        found = self.counters()
        peaks = (found.peak_bytes, found.peak_reserved_bytes)
        return replace(
            found,
            peak_bytes=greater(peaks[0], self._kept[0]),
            peak_reserved_bytes=greater(peaks[1], self._kept[1]),
        )

    def reset_peak(self) -> bool:
        reset = getattr(self._api, "reset_peak_memory_stats", None)
        if reset is None:
            return False
        self.counters()
        self._kept = (max(self._kept[0], self._last[0]), max(self._kept[1], self._last[1]))
        self._last = (0, 0)
        reset(self._index)
        return True

    def _note(self, peaks: tuple[Bytes, Bytes]) -> None:
        """Drop the kept peaks if the program itself has reset the counters: only that makes them fall."""
        known = (peaks[0] if isinstance(peaks[0], int) else 0, peaks[1] if isinstance(peaks[1], int) else 0)
        if known[0] < self._last[0] or known[1] < self._last[1]:
            self._kept = (0, 0)
        self._last = known

    def counters(self) -> PoolStats:
        found = self._api.memory_stats_as_nested_dict(self._index)

        def now(name: str, which: str = "current") -> Bytes:
            value = found.get(name, {}).get("all", {}).get(which)
            return value if isinstance(value, int) else Absent.NOT_AVAILABLE

        self._note((now("allocated_bytes", "peak"), now("reserved_bytes", "peak")))
        hits, misses = count_hits(found, now("allocation", "allocated"), now("segment", "allocated"))
        return PoolStats(
            allocated_bytes=now("allocated_bytes"),
            reserved_bytes=now("reserved_bytes"),
            active_bytes=now("active_bytes"),
            inactive_split_bytes=now("inactive_split_bytes"),
            peak_bytes=now("allocated_bytes", "peak"),
            allocations=now("allocation", "allocated"),
            retries=found.get("num_alloc_retries", Absent.NOT_AVAILABLE),
            ooms=found.get("num_ooms", Absent.NOT_AVAILABLE),
            peak_reserved_bytes=now("reserved_bytes", "peak"),
            frees=now("allocation", "freed"),
            total_allocated_bytes=now("allocated_bytes", "allocated"),
            total_freed_bytes=now("allocated_bytes", "freed"),
            hits=hits,
            misses=misses,
            cpu_fallbacks=count_fallbacks(self.backend_name, self.device),
        )

    def total(self) -> Bytes:
        return int(self._api.get_device_properties(self._index).total_memory) or Absent.NOT_AVAILABLE

    def free(self) -> Bytes:
        """Return the free bytes. On a unified machine, available System RAM, as CUDA counts page cache as used."""
        properties = self._api.get_device_properties(self._index)
        if getattr(properties, "is_integrated", 0):
            return host.available_bytes()
        ask = getattr(self._api, "mem_get_info", None)
        return Absent.NOT_SUPPORTED if ask is None else int(ask(self._index)[0])

    def clear(self) -> None:
        self._api.empty_cache()


def load_cupy_peaks() -> CupyPeaks:
    with importing:
        from memwatch.library.cupy_peaks import cupy_peaks  # needed only with CuPy

    return cupy_peaks


class CupyPool(CachingPool):
    """CuPy's default memory pool on one GPU."""

    backend_name = "CuPy"

    def __init__(self, cupy: Any, index: int = 0) -> None:  # noqa: ANN401  a module
        self._cupy = cupy
        self._index = index
        self.device: str = f"cuda:{index}"

    def stats(self) -> PoolStats:
        pool = self._cupy.get_default_memory_pool()
        return PoolStats(
            allocated_bytes=int(pool.used_bytes()),
            reserved_bytes=int(pool.total_bytes()),
            cpu_fallbacks=count_fallbacks(self.backend_name, self.device),
        )

    def counters(self) -> PoolStats:
        """Return the statistics, with the peaks while a block has a hook."""
        found, peak = self.stats(), load_cupy_peaks().find(self._index)
        if peak is None:
            return found
        return replace(found, peak_bytes=peak.used_bytes, peak_reserved_bytes=peak.reserved_bytes)

    def reset_peak(self) -> bool:
        pool = self._cupy.get_default_memory_pool()
        return load_cupy_peaks().reset(self._index, int(pool.used_bytes()), int(pool.total_bytes()))

    def is_peak_certain(self) -> bool:
        peak = load_cupy_peaks().find(self._index)
        return peak is None or peak.is_exact

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
        self.device: str = f"cuda:{device.local_hardware_id}" if device.platform == "gpu" else str(device)

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
            cpu_fallbacks=count_fallbacks(self.backend_name, self.device),
        )

    def total(self) -> Bytes:
        return self._figure("bytes_limit") or Absent.NOT_AVAILABLE

    def free(self) -> Bytes:
        whole, used = self.total(), self._figure("bytes_in_use")
        if isinstance(whole, Absent) or isinstance(used, Absent):
            return Absent.NOT_AVAILABLE
        return max(0, whole - used)

    def fits(self) -> Bytes:
        return self.free()  # which has the unused part of its pool

    def clear(self) -> None:
        """Do nothing: JAX frees an array with its last reference and keeps its pool."""


def count_hits(
    found: Mapping[str, object], allocations: Bytes, segments: Bytes
) -> tuple[int | Absent, int | Absent]:
    """Return PyTorch's allocations without and with a call of the driver (cudaMalloc, cuMemMap).

    Older versions count only segments, which expandable ones are not. The allocator that is chosen
    with backend:cudaMallocAsync counts no calls:
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
    """
    misses = found.get("num_device_alloc", segments)
    if not isinstance(misses, int) or isinstance(allocations, Absent):
        return Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE
    if allocations and not misses:
        return Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED
    return max(0, allocations - misses), misses


_torch_pools: dict[str, list[MemoryPool]] = {}


def find_framework_pools(modules: Mapping[str, Any]) -> list[MemoryPool]:
    """Return the pools of the imported frameworks. `modules`: the process's sys.modules."""
    found: list[MemoryPool] = []
    if (torch := modules.get("torch")) is not None:
        found += [*_find_torch_pools(torch, "cuda"), *_find_torch_pools(torch, "xpu"), *find_mps_pools(torch)]
    if (cupy := modules.get("cupy")) is not None:
        found += _find_cupy_pools(cupy)
    if (jax := modules.get("jax")) is not None:
        found += _find_jax_pools(jax, modules.get("jax._src.xla_bridge"))
    if (mlx := modules.get("mlx.core")) is not None:
        found += find_mlx_pools(mlx)
    return found


@never_raise(())
def _find_torch_pools(torch: Any, kind: str) -> list[MemoryPool]:  # noqa: ANN401
    # Only if CUDA or XPU is initialized: earlier calls would create a context.
    api = getattr(torch, kind, None)
    if api is None or not api.is_initialized():
        return []
    if not _torch_pools.get(kind):
        _torch_pools[kind] = [TorchPool(torch, index, kind) for index in range(api.device_count())]
    return _torch_pools[kind]


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


_registered: list[MemoryPool] = []
MAX_POOLS = 16
POOL_METHODS = ("stats", "total", "free", "pressure", "clear", "shrink")
TOTALS = ("allocations", "frees", "total_allocated_bytes", "total_freed_bytes")
SUMMED = ("allocated_bytes", "reserved_bytes", "peak_bytes", *TOTALS)


def register_pool(pool: MemoryPool) -> None:
    """Register a pool, once, to report to the daemon and shrink under pressure.

    Raises InvalidInputError for an object that is not a MemoryPool, and above sixteen pools.
    """
    check_members(pool, "pool", POOL_METHODS, "memory pool", "an object with the members of MemoryPool")
    for name in ("backend_name", "device"):
        if not isinstance(getattr(pool, name, None), str):
            raise InvalidInputError(
                f'pool is {describe(pool)}, whose {name} is not a text; for example device = "cuda:0"'
            )
    if any(one is pool for one in _registered):
        return
    if len(_registered) >= MAX_POOLS:
        raise InvalidInputError(f"{len(_registered)} pools are registered, the most allowed; unregister one first")
    _registered.append(pool)


def unregister_pool(pool: MemoryPool) -> None:
    """Unregister a pool. No error if it is not registered."""
    _registered[:] = [one for one in _registered if one is not pool]


def pools() -> list[MemoryPool]:
    """Return the registered pools and those of the frameworks that use a GPU."""
    return [*_registered, *find_framework_pools(sys.modules)]


@never_raise(PoolStats(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE))
def read_stats(pool: MemoryPool) -> PoolStats:
    return check_stats(pool.stats(), pool)


@never_raise(Absent.NOT_AVAILABLE)
def read_free(pool: MemoryPool) -> Bytes:
    return pool.free()


@never_raise(PoolStats(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE))
def read_counters(pool: MemoryPool) -> PoolStats:
    """Return the statistics with the peaks as the allocator counts them now."""
    return check_stats(pool.counters() if isinstance(pool, CachingPool) else pool.stats(), pool)


def check_stats(found: object, pool: MemoryPool) -> PoolStats:
    """Return a pool's statistics if all can be added up: a registered pool is a program's own code."""
    if not isinstance(found, PoolStats):
        raise InvalidInputError(
            f"stats() of {pool.backend_name} returned {describe(found)}, which is not PoolStats"
        )
    for name, figure in asdict(found).items():
        if not isinstance(figure, int | Absent):
            raise InvalidInputError(
                f"stats() of {pool.backend_name} has the {name} {describe(figure)}, which is not a whole number"
            )
    return found


def total_stats() -> PoolStats | None:
    """Return the sum of all pools of this process, which never overlap. None without pools."""
    return sum_stats([read_stats(pool) for pool in pools()])


def sum_stats(found: list[PoolStats]) -> PoolStats | None:
    if len(found) < 2:
        return found[0] if found else None
    return replace(found[0], **{name: _sum([getattr(one, name) for one in found]) for name in SUMMED})


def _sum(figures: list[Bytes]) -> Bytes:
    known = [figure for figure in figures if isinstance(figure, int)]
    return sum(known) if known else figures[0]


def clear_all() -> None:
    """Collect garbage, since tensors in reference cycles keep their memory, then clear every pool."""
    import gc

    gc.collect()
    for pool in pools():
        clear_pool(pool)


@never_raise(None)
def clear_pool(pool: MemoryPool) -> None:
    pool.clear()


def shrink() -> int:
    """Shrink every pool and return the bytes that were released. Never raises.

    A framework's pool releases all that is unused, as `clear` does. A registered pool decides what it releases.
    """
    return sum(_shrink(pool) for pool in pools())


@never_raise(0)
def _shrink(pool: MemoryPool) -> int:
    return pool.shrink()
