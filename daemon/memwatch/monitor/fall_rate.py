"""Speed at which available memory falls, and the time until it must be read again. No I/O and no clocks."""

from __future__ import annotations

import math
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
    """Available bytes of a target, its least movement, and the available bytes above the next level's threshold.

    `margin_bytes` may go until the next reading: 4 % of the available bytes, or all above the threshold.
    """

    available_bytes: int
    min_move: float
    above_threshold_bytes: float
    margin_bytes: float

    def after(self, fall_bytes: float) -> Remaining:
        """Return the state after this fall, which is negative for a rise."""
        left = self.available_bytes - round(fall_bytes)
        return remaining(left, self.min_move, self.above_threshold_bytes - fall_bytes)


def remaining(available_bytes: int, min_move: float, above_threshold_bytes: float = math.inf) -> Remaining:
    margin = MARGIN_RATIO * (available_bytes if available_bytes > min_move else min_move)
    if above_threshold_bytes < margin:
        margin = max(1.0, above_threshold_bytes)
    return Remaining(available_bytes, min_move, above_threshold_bytes, margin)


class FallRate:
    """Fall of one target between its last two readings, and the seconds until its margin is gone at that rate.

    The rate decays by half at each reading, since memory falls in steps: a pause between two allocations is no end.
    """

    def __init__(self) -> None:
        self.seconds_to_margin: float = math.inf
        self._bytes_per_second = 0.0
        self._read_at = -math.inf
        self._available: int | None = None

    def update(self, now: float, state: Remaining) -> float:
        """Add a reading and return the seconds until the margin is gone."""
        available = state.available_bytes
        rate, fell = self._bytes_per_second / 2, 0 if self._available is None else self._available - available
        if fell > 0:
            rate = max(fell / min(max(now - self._read_at, MIN_FALL_SECONDS), MAX_FALL_SECONDS), rate)
        # Below one byte per second it is over: halving on would take a thousand readings to end.
        rate = rate if rate >= 1.0 else 0.0
        self._read_at, self._available, self._bytes_per_second = now, available, rate
        self.seconds_to_margin = state.margin_bytes / rate if rate else math.inf
        return self.seconds_to_margin
