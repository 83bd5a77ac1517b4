"""How often to tick. Near the edge ten looks a second, and a tick where one of them saw memory move."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from memwatch.model import Absent
from memwatch.monitor.schedule import FAST_SECONDS, SLOW_RATIO, Pace, needs_fast_ticks, next_pace
from memwatch.snapshot import Pressure

log = logging.getLogger(__name__)

# Near the edge a tick is never older than this, whether anything moves or not.
STILL_SECONDS = 1.0
# What has to move for a tick to come sooner, as a part of what is near its end: 8 MiB of a board of 8 GiB.
MIN_MOVE_RATIO = 1 / 1024
# Where nothing has moved by so much for so long, who holds it is not looked for sooner than usual either.
RESTLESS_SECONDS = 10.0


class NearTarget(NamedTuple):
    """A target that makes ticks come fast."""

    size_bytes: int
    available_bytes: int

    @property
    def min_move(self) -> float:
        return MIN_MOVE_RATIO * self.size_bytes


class Pacing:
    """The pace of a loop, and what it was told last. For one thread.

    `ticked_at`, in monotonic seconds, is when the last tick began; None while one is at work, or has failed.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self.ticked_at: float | None = None
        self.is_restless = False
        self._min_move = 0.0
        self._moved: dict[str, NearTarget] = {}  # as it was when it last moved
        self._moved_at = -math.inf

    def on_pressure(self, pressure: Sequence[Pressure], now: float, usual: float) -> None:
        """Go on at the pace that this asks for; `usual` seconds lie between two ticks elsewhere."""
        self._keep(next_pace(self.pace, pressure, now), now, usual)
        near = near_its_end(pressure) if self.pace.fast else {}
        quiet = not any(one.target in near and is_eventful(one) for one in pressure)
        self._min_move = min((one.min_move for one in near.values()), default=0.0) if quiet else 0.0
        if has_moved(self._moved, near):
            self._moved, self._moved_at = near, now
        self.is_restless = self.pace.fast and now - self._moved_at < RESTLESS_SECONDS

    def on_stall(self, now: float, usual: float) -> None:
        """The kernel says that tasks wait for memory."""
        self._keep(next_pace(self.pace, (), now, stalled=True), now, usual)

    def is_still(self, due: float, usual: float, moved_bytes: Callable[[], float]) -> bool:
        """Whether a look is enough now: the last tick is recent, only use spoke in it, and nothing has moved since.

        A server that holds nine tenths of its memory all day costs little more than at one tick a second.
        """
        if self.ticked_at is None or not self._min_move:
            return False
        if due + FAST_SECONDS / 2 >= self.ticked_at + min(usual, STILL_SECONDS):
            return False
        return moved_bytes() < self._min_move

    def _keep(self, pace: Pace, now: float, usual: float) -> None:
        if pace.fast != self.pace.fast:
            log.debug("a look every %g s%s", pace.interval(usual), f": {pace.why}" if pace.fast else " again")
            self._moved_at = now
        self.pace = pace


def near_its_end(pressure: Iterable[Pressure]) -> dict[str, NearTarget]:
    """By target. One without a figure makes nobody hurry."""
    return {
        one.target: NearTarget(one.size_bytes, one.available_bytes)
        for one in pressure
        if needs_fast_ticks(one, SLOW_RATIO)
        and isinstance(one.size_bytes, int)
        and isinstance(one.available_bytes, int)
    }


def is_eventful(verdict: Pressure) -> bool:
    """Whether it will be full soon, or anything besides its use speaks for its level: tasks that wait, a kill."""
    return verdict.corroborated or not isinstance(verdict.seconds_to_full, Absent)


def has_moved(before: dict[str, NearTarget], now: dict[str, NearTarget]) -> bool:
    """Whether one of those that are near their end is new, or is elsewhere than it was."""
    return any(
        name not in before or abs(one.available_bytes - before[name].available_bytes) >= one.min_move
        for name, one in now.items()
    )
