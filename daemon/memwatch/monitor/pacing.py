"""Pace of the loop. Near exhaustion: ten probes a second, and a tick if memory use moved."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from memwatch.model import Absent
from memwatch.monitor.schedule import FAST_SECONDS, SLOW_RATIO, Pace, needs_fast_ticks, next_pace
from memwatch.snapshot import Pressure

log = logging.getLogger(__name__)

# Near exhaustion, the last tick is never older than this, even if nothing moves.
STILL_SECONDS = 1.0
# Movement that triggers an earlier tick, as a fraction of the target's size: 8 MiB of a board with 8 GiB.
MIN_MOVE_RATIO = 1 / 1024
# Without such a movement for this time, collectors also return to their usual period.
RESTLESS_SECONDS = 10.0


class NearTarget(NamedTuple):
    """A target that causes fast ticks."""

    size_bytes: int
    available_bytes: int

    @property
    def min_move(self) -> float:
        return MIN_MOVE_RATIO * self.size_bytes


class Pacing:
    """Pace of a loop and its latest inputs. Not thread-safe.

    `ticked_at`: start of the last tick in monotonic seconds; None during a tick and after a failed one.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self.ticked_at: float | None = None
        self.is_restless = False
        self._min_move = 0.0
        self._moved: dict[str, NearTarget] = {}  # state at the last movement
        self._moved_at = -math.inf

    def on_pressure(self, pressure: Sequence[Pressure], now: float, usual: float) -> None:
        """Update the pace after a tick. `usual`: seconds between two ticks at the usual pace."""
        self._keep(next_pace(self.pace, pressure, now), now, usual)
        near = near_its_end(pressure) if self.pace.fast else {}
        quiet = not any(one.target in near and is_eventful(one) for one in pressure)
        self._min_move = min((one.min_move for one in near.values()), default=0.0) if quiet else 0.0
        if has_moved(self._moved, near):
            self._moved, self._moved_at = near, now
        self.is_restless = self.pace.fast and now - self._moved_at < RESTLESS_SECONDS

    def on_stall(self, now: float, usual: float) -> None:
        """Switch to fast ticks: a PSI trigger fired."""
        self._keep(next_pace(self.pace, (), now, stalled=True), now, usual)

    def is_still(self, due: float, usual: float, moved_bytes: Callable[[], float]) -> bool:
        """Check that no tick is needed now: the last is recent, use was its only signal, and nothing moved since.

        This way a server that holds 90% of its memory all day costs little more than at one tick a second.
        """
        if self.ticked_at is None or not self._min_move:
            return False
        if due + FAST_SECONDS / 2 >= self.ticked_at + min(usual, STILL_SECONDS):
            return False
        return moved_bytes() < self._min_move

    def _keep(self, pace: Pace, now: float, usual: float) -> None:
        if pace.fast != self.pace.fast:
            log.debug("sampling every %g s%s", pace.interval(usual), f": {pace.why}" if pace.fast else " again")
            self._moved_at = now
        self.pace = pace


def near_its_end(pressure: Iterable[Pressure]) -> dict[str, NearTarget]:
    """Return the targets near exhaustion by name. Targets without size or available memory are left out."""
    return {
        one.target: NearTarget(one.size_bytes, one.available_bytes)
        for one in pressure
        if needs_fast_ticks(one, SLOW_RATIO)
        and isinstance(one.size_bytes, int)
        and isinstance(one.available_bytes, int)
    }


def is_eventful(verdict: Pressure) -> bool:
    """Check for a signal other than use: a forecast of exhaustion, stalled tasks (PSI) or an OOM kill."""
    return verdict.corroborated or not isinstance(verdict.seconds_to_full, Absent)


def has_moved(before: dict[str, NearTarget], now: dict[str, NearTarget]) -> bool:
    """Check that a target near exhaustion is new, or that its available memory moved by `min_move`."""
    return any(
        name not in before or abs(one.available_bytes - before[name].available_bytes) >= one.min_move
        for name, one in now.items()
    )
