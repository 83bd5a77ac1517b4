"""The pools of this process: those that were registered, and those of the frameworks that the caller uses."""

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
    return [*_registered, *pools_of_frameworks(sys.modules)]


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
