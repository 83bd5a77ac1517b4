"""Allocators of Apple's frameworks: MLX, and PyTorch on Metal (MPS). Both allocate from System RAM."""

from __future__ import annotations

from typing import Any

from memwatch.core.model import Absent, Bytes
from memwatch.library.host import host
from memwatch.library.memory_pool import CachingPool, MemoryPool, PoolStats, greater
from memwatch.library.never_raise import never_raise


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
