"""Speed at which available memory falls, and the time until it must be read again. No I/O and no clocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

# Less than 5 % of the available memory is gone at the next reading. The rest of the 5 % is for the reading itself,
# and for timers, which are up to 1 ms late.
MARGIN_RATIO = 0.04
# Movement that is reported by a tick, as a fraction of the target's size: 8 MiB of a board with 8 GiB.
MIN_MOVE_RATIO = 1 / 1024
# A fall that is seen after a longer pause may have begun at its end: it counts as one of this duration.
MAX_FALL_SECONDS = 0.1
MIN_FALL_SECONDS = 0.005


class Remaining(NamedTuple):
    """Size of a target, its available bytes, and how many of them are above the next level's threshold."""

    size_bytes: int
    available_bytes: int
    above_threshold_bytes: float = math.inf

    @property
    def min_move(self) -> float:
        return MIN_MOVE_RATIO * self.size_bytes

    @property
    def margin_bytes(self) -> float:
        """Return the bytes that may go until the next reading: 4 % of the available, or all above the threshold."""
        return max(1.0, min(MARGIN_RATIO * max(self.available_bytes, self.min_move), self.above_threshold_bytes))

    def after(self, fall_bytes: float) -> Remaining:
        """Return the state after this fall, which is negative for a rise."""
        left = self.available_bytes - round(fall_bytes)
        return Remaining(self.size_bytes, left, self.above_threshold_bytes - fall_bytes)


class FallRate:
    """Fall of each target between its last two readings, in bytes per second.

    A rate decays by half at each reading, since memory falls in steps: a pause between two allocations is no end.
    """

    def __init__(self) -> None:
        self._read_at = -math.inf
        self._remaining: Mapping[str, Remaining] = {}
        self._rates: Mapping[str, float] = {}

    def update(self, now: float, remaining: Mapping[str, Remaining]) -> None:
        seconds = min(max(now - self._read_at, MIN_FALL_SECONDS), MAX_FALL_SECONDS)
        self._rates = {
            name: max(self._fall_bytes(name, one) / seconds, self._rates.get(name, 0.0) / 2)
            for name, one in remaining.items()
        }
        self._read_at, self._remaining = now, remaining

    def seconds_to_margin(self) -> float:
        """Return the seconds until the margin of a target is gone at its rate; infinity if nothing falls."""
        return min(
            (one.margin_bytes / self._rates[name] for name, one in self._remaining.items() if self._rates[name]),
            default=math.inf,
        )

    def _fall_bytes(self, name: str, now: Remaining) -> int:
        before = self._remaining.get(name)
        return 0 if before is None else before.available_bytes - now.available_bytes
