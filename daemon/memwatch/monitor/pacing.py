"""Pace of the loop: the faster memory falls, the sooner it is read again, and a tick follows if it has moved."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from memwatch.model import Absent
from memwatch.monitor.fall_rate import FallRate, Remaining
from memwatch.monitor.schedule import FAST_KINDS, FAST_SECONDS, SLOW_RATIO, Pace, needs_fast_ticks, next_pace
from memwatch.pressure.rules import PressureRules
from memwatch.snapshot import Level, Pressure

log = logging.getLogger(__name__)

# Near exhaustion, the last tick is never older than this, even if nothing moves.
STILL_SECONDS = 1.0
# Two readings are at least this far apart. A reading takes 25 µs, a tick about 1 ms.
MIN_SECONDS = 0.005
# On a slow machine ticks take at most a third of one CPU.
MIN_TICK_PAUSE_RATIO = 3.0
# Without movement for this time, collectors also return to their usual period.
RESTLESS_SECONDS = 10.0
DEFAULT_RULES = PressureRules()


class Pacing:
    """Pace of a loop and its latest inputs. Not thread-safe.

    `ticked_at`: start of the last tick in monotonic seconds; None during a tick and after a failed one.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self.ticked_at: float | None = None
        self.is_restless = False
        self._tick_seconds = 0.0
        self._is_quiet = False
        self._near: Mapping[str, Remaining] = {}
        self._remaining: Mapping[str, Remaining] = {}
        self._ram = ""
        self._fall_rate = FallRate()
        self._moved: Mapping[str, Remaining] = {}  # state at the last movement
        self._moved_at = -math.inf

    def on_pressure(
        self, pressure: Sequence[Pressure], now: float, usual: float, rules: PressureRules = DEFAULT_RULES
    ) -> None:
        """Update the pace during a tick. `usual`: seconds between two ticks at the usual pace."""
        self._keep(next_pace(self.pace, pressure, now), now, usual)
        self._remaining = find_remaining(pressure, rules)
        self._ram = next((one.target for one in pressure if one.kind == "system_ram"), "")
        self._fall_rate.update(now, self._remaining)
        names = near_its_end(pressure) if self.pace.fast else frozenset()
        self._near = {name: one for name, one in self._remaining.items() if name in names}
        self._is_quiet = bool(self._near) and not any(is_eventful(one) for one in pressure if one.target in names)
        if has_moved(self._moved, self._near):
            self._moved, self._moved_at = self._near, now
        self.is_restless = self.pace.fast and now - self._moved_at < RESTLESS_SECONDS

    def on_tick(self, started: float, seconds: float) -> None:
        """Record a successful tick and its duration."""
        self.ticked_at, self._tick_seconds = started, seconds

    def on_stall(self, now: float, usual: float) -> None:
        """Switch to fast ticks: a PSI trigger fired."""
        self._keep(next_pace(self.pace, (), now, stalled=True), now, usual)

    def interval(self, usual: float) -> float:
        """Return the seconds until memory must be read again. A fall shortens them."""
        soonest = max(MIN_SECONDS, min(FAST_SECONDS, MIN_TICK_PAUSE_RATIO * self._tick_seconds))
        return min(self.pace.interval(usual), max(soonest, self._fall_rate.seconds_to_margin()))

    def is_still(self, now: float, usual: float, moved_bytes: Callable[[], float]) -> bool:
        """Check that no tick is needed now: the last is recent, and nothing moved since.

        A server that holds 90% of its memory all day costs little more than at one tick a second this way. If use
        is not the only signal, the last tick is a tenth of a second old at most. `moved_bytes`: fall of System RAM.
        """
        if self.ticked_at is None or not self._remaining:
            return False
        age = min(usual, STILL_SECONDS if self._is_quiet else FAST_SECONDS)
        if now + self.interval(usual) / 2 >= self.ticked_at + age:
            return False
        fall = moved_bytes()
        targets = (self._near or self._remaining).values()
        if abs(fall) >= min(one.min_move for one in targets) or fall >= min(one.margin_bytes for one in targets):
            return False
        read = {name: one.after(fall) if name == self._ram else one for name, one in self._remaining.items()}
        self._fall_rate.update(now, read)
        return True

    def _keep(self, pace: Pace, now: float, usual: float) -> None:
        if pace.fast != self.pace.fast:
            log.debug("sampling every %g s%s", pace.interval(usual), f": {pace.why}" if pace.fast else " again")
            self._moved_at = now
        self.pace = pace


def find_remaining(pressure: Iterable[Pressure], rules: PressureRules) -> dict[str, Remaining]:
    """Return the targets in system RAM by name. Targets without size or available memory are left out."""
    return {
        one.target: Remaining(one.size_bytes, one.available_bytes, count_above_threshold(one, rules))
        for one in pressure
        if one.kind in FAST_KINDS and isinstance(one.size_bytes, int) and isinstance(one.available_bytes, int)
    }


def count_above_threshold(verdict: Pressure, rules: PressureRules) -> float:
    """Return the bytes that may go before the level rises to high or critical by use; infinity if it cannot."""
    if verdict.level >= Level.CRITICAL or isinstance(verdict.available_bytes, Absent):
        return math.inf
    entry = rules.thresholds_for(verdict.target).entry(max(Level.HIGH, Level(verdict.level + 1)))
    if verdict.ratio >= entry:  # critical starts above its threshold
        return 0.0
    return verdict.available_bytes * (entry - verdict.ratio) / (1 - verdict.ratio)


def near_its_end(pressure: Iterable[Pressure]) -> frozenset[str]:
    """Return the names of the targets near exhaustion."""
    return frozenset(one.target for one in pressure if needs_fast_ticks(one, SLOW_RATIO))


def is_eventful(verdict: Pressure) -> bool:
    """Check for a signal other than use: a forecast of exhaustion, stalled tasks (PSI) or an OOM kill."""
    return verdict.corroborated or not isinstance(verdict.seconds_to_full, Absent)


def has_moved(before: Mapping[str, Remaining], now: Mapping[str, Remaining]) -> bool:
    """Check that a target near exhaustion is new, or that its available memory moved by `min_move`."""
    return any(
        name not in before or abs(one.available_bytes - before[name].available_bytes) >= one.min_move
        for name, one in now.items()
    )
