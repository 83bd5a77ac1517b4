"""What a framework's own pool of memory says of itself, and what it can be asked to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from memwatch.model import Absent, Bytes


class PoolStats(Struct, frozen=True):
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


class CachingPool:
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
