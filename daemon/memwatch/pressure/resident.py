"""Memory that is there to stay: a machine that serves one big model is full by design."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.pressure.inputs import Target

# `auto`: the least that was used in this time, if that is so long that it is steady.
AUTO_RESIDENT_SECONDS = 600.0
_SLOTS = 20


class Resident(Struct, frozen=True):
    """The least use in each of the last `_SLOTS` stretches of time, oldest first; a slot is (start, bytes)."""

    slots: tuple[tuple[float, int], ...] = ()

    def seen(self, now: float, target: Target, wanted: int | Literal["auto"] | None) -> Resident:
        if wanted != "auto":
            return self
        used = target.size_bytes - target.available_bytes
        length = AUTO_RESIDENT_SECONDS / _SLOTS
        if not self.slots or now - self.slots[-1][0] >= length:
            return Resident((*self.slots[-_SLOTS:], (now, used)))
        start, least = self.slots[-1]
        return self if used >= least else Resident((*self.slots[:-1], (start, used)))

    def bytes_of(self, wanted: int | Literal["auto"] | None) -> int:
        """What to take for resident; 0 until `auto` has seen enough."""
        if wanted != "auto":
            return wanted or 0
        return min(used for _, used in self.slots) if len(self.slots) > _SLOTS else 0


def judged_ratio(target: Target, resident: int) -> float:
    """The used part, 0 to 1, of what is not resident."""
    size = target.size_bytes - resident
    if resident <= 0 or size <= 0:
        return target.used_ratio
    return max(0.0, 1.0 - target.available_bytes / size)
