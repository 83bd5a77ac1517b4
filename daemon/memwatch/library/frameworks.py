"""The pools of frameworks, as far as the caller has imported them. No framework is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from memwatch.library.harmless import harmless
from memwatch.library.host import host
from memwatch.model import Absent, Bytes


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What an allocator holds. `allocations` counts all it ever made; `peak_bytes` is the most it handed out."""

    allocated_bytes: Bytes
    reserved_bytes: Bytes
    active_bytes: Bytes = Absent.NOT_SUPPORTED
    inactive_split_bytes: Bytes = Absent.NOT_SUPPORTED
    peak_bytes: Bytes = Absent.NOT_SUPPORTED
    allocations: int | Absent = Absent.NOT_SUPPORTED
    retries: int | Absent = Absent.NOT_SUPPORTED
    ooms: int | Absent = Absent.NOT_SUPPORTED


class MemoryPool(Protocol):
    """A framework's own pool: it reports itself, and can be asked to give back what it does not use."""

    backend_name: str
    device: str

    def stats(self) -> PoolStats:
        """What it holds now."""
        ...

    def total(self) -> Bytes:
        """The most it could ever take."""
        ...

    def free(self) -> Bytes:
        """What could be taken now besides what it has."""
        ...

    def pressure(self) -> float | Absent:
        """Used part of `total`, 0 to 1."""
        ...

    def clear(self) -> None:
        """Give back everything that is not handed out."""
        ...

    def shrink(self) -> int:
        """The same under pressure; the bytes that it gave back."""
        ...


class _Cached:
    """What the pools of frameworks have in common."""

    stats: Callable[[], PoolStats]
    total: Callable[[], Bytes]
    free: Callable[[], Bytes]
    clear: Callable[[], None]

    def pressure(self) -> float | Absent:
        whole, left = self.total(), self.free()
        if isinstance(whole, Absent) or isinstance(left, Absent) or not whole:
            return Absent.NOT_AVAILABLE
        return min(1.0, max(0.0, 1 - left / whole))

    def shrink(self) -> int:
        before = self.stats().reserved_bytes
        self.clear()
        after = self.stats().reserved_bytes
        return max(0, before - after) if isinstance(before, int) and isinstance(after, int) else 0


class TorchPool(_Cached):
    """PyTorch's caching allocator on one GPU, CUDA or ROCm. `torch` is the module that the caller imported."""

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
        """On a unified machine what System RAM has left: CUDA itself counts page cache as used there."""
        properties = self._torch.cuda.get_device_properties(self._index)
        if getattr(properties, "is_integrated", 0):
            return host.available_bytes()
        return int(self._torch.cuda.mem_get_info(self._index)[0])

    def clear(self) -> None:
        self._torch.cuda.empty_cache()


class CupyPool(_Cached):
    """CuPy's default memory pool on the current device."""

    backend_name = "CuPy"
    device = "cuda"

    def __init__(self, cupy: Any) -> None:  # noqa: ANN401  a module
        self._cupy = cupy

    def stats(self) -> PoolStats:
        pool = self._cupy.get_default_memory_pool()
        return PoolStats(allocated_bytes=int(pool.used_bytes()), reserved_bytes=int(pool.total_bytes()))

    def total(self) -> Bytes:
        return int(self._cupy.cuda.runtime.memGetInfo()[1]) or Absent.NOT_AVAILABLE

    def free(self) -> Bytes:
        return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def clear(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()


_registered: list[MemoryPool] = []
_torch_pools: list[TorchPool] = []
MOST_POOLS = 16


def register_pool(pool: MemoryPool) -> None:
    """Have a pool of your own reported, and asked to shrink under pressure. Raises ValueError beyond sixteen."""
    if len(_registered) >= MOST_POOLS:
        raise ValueError(f"{len(_registered)} pools are registered; at most {MOST_POOLS} are")
    _registered.append(pool)


def unregister_pool(pool: MemoryPool) -> None:
    """Forget it; no error where it was not registered."""
    if pool in _registered:
        _registered.remove(pool)


def pools() -> list[MemoryPool]:
    """The pools of this process: those registered, and those of the frameworks that have a GPU in use."""
    return [*_registered, *_of_torch(sys.modules.get("torch")), *_of_cupy(sys.modules.get("cupy"))]


def _of_torch(torch: Any) -> list[TorchPool]:  # noqa: ANN401
    """Only where CUDA is initialized: to ask before would make a context."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    if not _torch_pools:
        _torch_pools.extend(TorchPool(torch, index) for index in range(cuda.device_count()))
    return _torch_pools


def _of_cupy(cupy: Any) -> list[CupyPool]:  # noqa: ANN401
    return [] if cupy is None or not hasattr(cupy, "get_default_memory_pool") else [CupyPool(cupy)]


@harmless(PoolStats(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE))
def stats_of(pool: MemoryPool) -> PoolStats:
    """Of a pool that may be anybody's."""
    return pool.stats()


def total_stats() -> PoolStats | None:
    """All pools of this process added up, since no two hold the same bytes; None where it has none."""
    found = [stats_of(pool) for pool in pools()]
    if len(found) < 2:
        return found[0] if found else None
    names = ("allocated_bytes", "reserved_bytes", "peak_bytes", "allocations")
    return replace(found[0], **{name: _sum([getattr(one, name) for one in found]) for name in names})


def _sum(figures: list[Bytes]) -> Bytes:
    known = [figure for figure in figures if isinstance(figure, int)]
    return sum(known) if known else figures[0]


def clear_all() -> None:
    """Garbage first, since tensors in cycles hold their memory; then every pool."""
    import gc

    gc.collect()
    for pool in pools():
        _clear(pool)


@harmless(None)
def _clear(pool: MemoryPool) -> None:
    pool.clear()


def shrink_all() -> int:
    """Ask every pool to shrink; the bytes that came back."""
    return sum(_shrink(pool) for pool in pools())


@harmless(0)
def _shrink(pool: MemoryPool) -> int:
    return pool.shrink()
