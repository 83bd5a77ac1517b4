"""Memory pools of this process: registered ones and those of the frameworks in use."""

from __future__ import annotations

import sys

from msgspec.structs import replace

from memwatch.core.model import Absent, Bytes
from memwatch.library.framework_pools import find_framework_pools
from memwatch.library.memory_pool import CachingPool, MemoryPool, PoolStats
from memwatch.library.never_raise import never_raise

_registered: list[MemoryPool] = []
MAX_POOLS = 16
TOTALS = ("allocations", "frees", "total_allocated_bytes", "total_freed_bytes")
SUMMED = ("allocated_bytes", "reserved_bytes", "peak_bytes", *TOTALS)


def register_pool(pool: MemoryPool) -> None:
    """Register a pool to report to the daemon and shrink under pressure. Raises ValueError above sixteen pools."""
    if len(_registered) >= MAX_POOLS:
        raise ValueError(f"{len(_registered)} pools are registered, the most allowed; unregister one first")
    _registered.append(pool)


def unregister_pool(pool: MemoryPool) -> None:
    """Unregister a pool. No error if it is not registered."""
    if pool in _registered:
        _registered.remove(pool)


def pools() -> list[MemoryPool]:
    """Return the registered pools and those of the frameworks that use a GPU."""
    return [*_registered, *find_framework_pools(sys.modules)]


@never_raise(PoolStats(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE))
def read_stats(pool: MemoryPool) -> PoolStats:
    return pool.stats()


@never_raise(PoolStats(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE))
def read_counters(pool: MemoryPool) -> PoolStats:
    """Return the statistics with the peaks as the allocator counts them now."""
    return pool.counters() if isinstance(pool, CachingPool) else pool.stats()


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
