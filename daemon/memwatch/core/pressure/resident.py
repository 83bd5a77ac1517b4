"""Resident memory, excluded from usage: a machine that serves one large model is full by design."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.core.pressure.inputs import Target

# `auto`: the lowest usage in this time, once that much time has been observed.
AUTO_RESIDENT_SECONDS = 600.0
_SLOTS = 20


class Resident(Struct, frozen=True):
    """Lowest usage in each of the last time slots, oldest first; a slot is (start, bytes)."""

    slots: tuple[tuple[float, int], ...] = ()

    def with_use(self, now: float, target: Target, wanted: int | Literal["auto"] | None) -> Resident:
        if wanted != "auto":
            return self
        used = target.size_bytes - target.available_bytes
        length = AUTO_RESIDENT_SECONDS / _SLOTS
        if not self.slots or now - self.slots[-1][0] >= length:
            return Resident((*self.slots[-_SLOTS:], (now, used)))
        start, least = self.slots[-1]
        return self if used >= least else Resident((*self.slots[:-1], (start, used)))

    def resident_bytes(self, wanted: int | Literal["auto"] | None) -> int:
        """Return the resident bytes; 0 until `auto` has observed `AUTO_RESIDENT_SECONDS`."""
        if wanted != "auto":
            return wanted or 0
        return min(used for _, used in self.slots) if len(self.slots) > _SLOTS else 0


def judged_ratio(target: Target, resident: int) -> float:
    """Return the used fraction (0 to 1) of the memory that is not resident."""
    size = target.size_bytes - resident
    if resident <= 0 or size <= 0:
        return target.used_ratio
    return max(0.0, 1.0 - target.available_bytes / size)
