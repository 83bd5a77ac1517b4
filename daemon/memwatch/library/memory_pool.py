"""Interface of a framework's memory pool: its statistics and operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from memwatch.core.model import Absent, Bytes
from memwatch.core.units import size


class PoolStats(Struct, frozen=True):
    """Statistics of an allocator. Totals and counts, such as `allocations`, are since the start.

    `peak_bytes` and `peak_reserved_bytes`: peaks since the start, or since the program itself reset them.
    `hits`: allocations served from memory that was reserved already; `misses`: calls of the driver for more.
    `cpu_fallbacks`: allocations that `allocate_with_fallback` made on the CPU.
    """

    allocated_bytes: Bytes
    reserved_bytes: Bytes
    active_bytes: Bytes = Absent.NOT_SUPPORTED
    inactive_split_bytes: Bytes = Absent.NOT_SUPPORTED
    peak_bytes: Bytes = Absent.NOT_SUPPORTED
    allocations: int | Absent = Absent.NOT_SUPPORTED
    retries: int | Absent = Absent.NOT_SUPPORTED
    ooms: int | Absent = Absent.NOT_SUPPORTED
    peak_reserved_bytes: Bytes = Absent.NOT_SUPPORTED
    frees: int | Absent = Absent.NOT_SUPPORTED
    total_allocated_bytes: Bytes = Absent.NOT_SUPPORTED
    total_freed_bytes: Bytes = Absent.NOT_SUPPORTED
    hits: int | Absent = Absent.NOT_SUPPORTED
    misses: int | Absent = Absent.NOT_SUPPORTED
    cpu_fallbacks: int | Absent = Absent.NOT_SUPPORTED

    @property
    def hit_rate(self) -> float | Absent:
        """Fraction of allocations that needed no call of the driver, 0 to 1."""
        if isinstance(self.hits, Absent) or isinstance(self.misses, Absent):
            return self.hits if isinstance(self.hits, Absent) else self.misses
        whole = self.hits + self.misses
        return self.hits / whole if whole else Absent.NOT_AVAILABLE


# Allocations that fell back to the CPU, by root package of the framework and device.
_fallbacks: Counter[tuple[str, str]] = Counter()


def note_fallback(framework: str, device: str) -> None:
    """Count an allocation on the CPU in place of a device. `framework`: module of the error."""
    _fallbacks[framework.partition(".")[0], device] += 1


def count_fallbacks(backend_name: str, device: str) -> int:
    """Return the number of allocations of a pool's framework that fell back to the CPU."""
    return sum(
        count
        for (framework, place), count in _fallbacks.items()
        if place == device and is_framework(framework, backend_name)
    )


def is_framework(module: str, backend_name: str) -> bool:
    """Return True if a module is of the framework with this name: torch of PyTorch, jaxlib of JAX."""
    return module.partition(".")[0].removesuffix("lib").lower() in backend_name.lower()


class MemoryPool(Protocol):
    """A framework's memory pool, which reports statistics and can release unused memory."""

    backend_name: str
    device: str

    def stats(self) -> PoolStats:
        """Return the current statistics."""
        ...

    def total(self) -> Bytes:
        """Return the most bytes the pool could take."""
        ...

    def free(self) -> Bytes:
        """Return the bytes that the pool could still take now."""
        ...

    def pressure(self) -> float | Absent:
        """Return the used fraction of `total`, 0 to 1."""
        ...

    def clear(self) -> None:
        """Release all memory that is not allocated."""
        ...

    def shrink(self) -> int:
        """Release unused memory under pressure and return the bytes released."""
        ...


class CachingPool:
    """Base of the frameworks' pools."""

    stats: Callable[[], PoolStats]
    total: Callable[[], Bytes]
    free: Callable[[], Bytes]
    clear: Callable[[], None]

    def counters(self) -> PoolStats:
        """Return the statistics with the peaks since the last `reset_peak`."""
        return self.stats()

    def reset_peak(self) -> bool:
        """Reset the allocator's peaks. False if it has none that can be reset."""
        return False

    def is_peak_certain(self) -> bool:
        """Return False if the counted peak may have missed one."""
        return True

    def pressure(self) -> float | Absent:
        whole, left = self.total(), self.free()
        if isinstance(whole, Absent) or isinstance(left, Absent) or not whole:
            return Absent.NOT_AVAILABLE
        return min(1.0, max(0.0, 1 - left / whole))

    def fits(self) -> Bytes:
        """Return the most that could be allocated: free bytes, and unused ones that can be released."""
        stats, left = self.stats(), self.free()
        if isinstance(left, Absent) or isinstance(stats.reserved_bytes, Absent):
            return left
        taken = [stats.allocated_bytes, stats.inactive_split_bytes]
        held = sum(figure for figure in taken if isinstance(figure, int))
        return left + max(0, stats.reserved_bytes - held)

    def shrink(self) -> int:
        before = self.stats().reserved_bytes
        self.clear()
        after = self.stats().reserved_bytes
        return max(0, before - after) if isinstance(before, int) and isinstance(after, int) else 0


def greater(one: Bytes, other: Bytes) -> Bytes:
    """Return the greater of two values, or the known one if only one is known."""
    if isinstance(one, Absent):
        return other
    return one if isinstance(other, Absent) else max(one, other)


def describe_bytes(figure: Bytes) -> str:
    return f"— {figure.value.replace('_', ' ')}" if isinstance(figure, Absent) else size(figure)
