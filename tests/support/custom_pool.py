"""Memory pool of a program, like that of a framework."""

from __future__ import annotations

import memwatch

GIB = 1 << 30


class OwnPool:
    """Pool of a program, with half of its reserved memory in use."""

    backend_name, device = "Own", "cuda:0"

    def __init__(self) -> None:
        self.reserved = 4 * GIB

    def stats(self) -> memwatch.PoolStats:
        return memwatch.PoolStats(2 * GIB, self.reserved, ooms=1)

    def total(self) -> int:
        return 8 * GIB

    def free(self) -> int:
        return 8 * GIB - self.reserved

    def pressure(self) -> float:
        return self.reserved / self.total()

    def clear(self) -> None:
        self.reserved = 2 * GIB

    def shrink(self) -> int:
        before = self.reserved
        self.clear()
        return before - self.reserved
