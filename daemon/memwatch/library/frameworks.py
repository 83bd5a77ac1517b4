"""Memory pools of this process: registered ones and those of the frameworks in use."""

from __future__ import annotations

import sys

from msgspec.structs import replace

from memwatch.library.framework_pools import pools_of_frameworks
from memwatch.library.memory_pool import MemoryPool, PoolStats
from memwatch.library.never_raise import harmless
from memwatch.model import Absent, Bytes

_registered: list[MemoryPool] = []
MOST_POOLS = 16


def register_pool(pool: MemoryPool) -> None:
    """Register a pool to report to the daemon and shrink under pressure. Raises ValueError above sixteen pools."""
    if len(_registered) >= MOST_POOLS:
        raise ValueError(f"{len(_registered)} pools are registered, the most allowed; unregister one first")
    _registered.append(pool)


def unregister_pool(pool: MemoryPool) -> None:
    """Unregister a pool. No error if it is not registered."""
    if pool in _registered:
        _registered.remove(pool)


def pools() -> list[MemoryPool]:
    """Return the registered pools and those of the frameworks that use a GPU."""
    return [*_registered, *pools_of_frameworks(sys.modules)]


@harmless(PoolStats(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE))
def stats_of(pool: MemoryPool) -> PoolStats:
    return pool.stats()


def total_stats() -> PoolStats | None:
    """Return the sum of all pools of this process, which never overlap. None without pools."""
    found = [stats_of(pool) for pool in pools()]
    if len(found) < 2:
        return found[0] if found else None
    names = ("allocated_bytes", "reserved_bytes", "peak_bytes", "allocations")
    return replace(found[0], **{name: _sum([getattr(one, name) for one in found]) for name in names})


def _sum(figures: list[Bytes]) -> Bytes:
    known = [figure for figure in figures if isinstance(figure, int)]
    return sum(known) if known else figures[0]


def clear_all() -> None:
    """Collect garbage, since tensors in reference cycles keep their memory, then clear every pool."""
    import gc

    gc.collect()
    for pool in pools():
        _clear(pool)


@harmless(None)
def _clear(pool: MemoryPool) -> None:
    pool.clear()


def shrink_all() -> int:
    """Shrink every pool and return the bytes that were released."""
    return sum(_shrink(pool) for pool in pools())


@harmless(0)
def _shrink(pool: MemoryPool) -> int:
    return pool.shrink()
