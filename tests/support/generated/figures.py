"""Figures of generated drivers: right, wrong, or absent."""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.model import Absent, Bytes
from support.generated.choices import Choices

MIB, GIB = 1 << 20, 1 << 30
REASONS = tuple(Absent)
# All bits of a 64-bit figure set, less one: the driver reads all of them as "not available".
HUGE = ((1 << 40), (1 << 62), (1 << 63) - 1, (1 << 64) - 2)


class Figures(Struct, frozen=True):
    """Source of figures. `is_positive`: no driver reports 0, so each 0 in an output is an unknown figure.

    `lies`: percentage of wrong figures; `gaps`: of absent ones.
    """

    choose: Choices
    is_positive: bool
    lies: int
    gaps: int

    def reported(self, true: int) -> int:
        """Return a figure as a driver reports it."""
        if not self.choose.chance(self.lies):
            return max(true, 1) if self.is_positive else true
        wrong = self.choose.pick((0, 1, true + 1, 2 * true, true // 2, *HUGE))
        return max(wrong, 1) if self.is_positive else wrong

    def known(self, true: int) -> Bytes:
        """Return a figure, or the reason for its absence."""
        reason = self.absence()
        return self.reported(true) if reason is None else reason

    def absence(self) -> Absent | None:
        return self.choose.pick(REASONS) if self.choose.chance(self.gaps) else None

    def part(self, whole: int) -> int:
        """Return a true part of `whole`; neither nothing nor all of it if no driver reports 0."""
        sixteenth = max(1, whole >> 4)
        low = 1 if self.is_positive else 0
        high = 15 if self.is_positive else 16
        return min(whole, self.choose.integer(low, high) * sixteenth)

    def size(self) -> int:
        """Return the size of a memory, from 1 GiB to 1 TiB."""
        return GIB << self.choose.integer(0, 10)


def draw_figures(choose: Choices) -> Figures:
    return Figures(choose, choose.chance(50), choose.pick((0, 0, 3, 10, 30)), choose.pick((0, 0, 5, 20)))
