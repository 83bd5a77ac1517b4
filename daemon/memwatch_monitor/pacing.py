"""Pace of the loop: the faster memory falls, the sooner it is read again, and a tick follows if it has moved.

No I/O and no clocks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from memwatch.core.model import RAM, Absent, Pool
from memwatch.core.pressure.forecast import FAST, NEAR
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.reading.schedule import FAST_KINDS, FAST_SECONDS, SLOW_RATIO, Pace, needs_fast_ticks, next_pace
from memwatch.core.snapshot import Level, Pressure

log: logging.Logger = logging.getLogger(__name__)

# Near exhaustion, the last tick is never older than this, even if nothing moves.
STILL_SECONDS = 1.0
# Two readings are at least this far apart. A reading takes 25 µs, a tick about 1 ms.
MIN_SECONDS = 0.005
# On a slow machine ticks take at most a third of one CPU.
MIN_TICK_PAUSE_RATIO = 3.0
# Without movement for this time, collectors also return to their usual period.
RESTLESS_SECONDS = 10.0
# Less than 5 % of the available memory is gone at the next reading. The rest of the 5 % is for the reading itself,
# and for timers, which are up to 1 ms late.
MARGIN_RATIO = 0.04
# A movement that changes no level and no forecast is reported by a tick this long after the last one.
REPORT_SECONDS = 0.35
# A forecast needs this loss, as a fraction of the size, from the highest reading of this time (`FAST`, `NEAR`).
FORECAST_RATIO, FORECAST_SECONDS = FAST.min_fall_ratio, NEAR.long_seconds
# Movement that is reported by a tick, as a fraction of the target's size: 8 MiB of a board with 8 GiB.
MIN_MOVE_RATIO = 1 / 1024
# A fall that is seen after a longer pause may have begun at its end: it counts as one of this duration.
MAX_FALL_SECONDS = 0.1
MIN_FALL_SECONDS = 0.005
# The fastest fall of all recorded machines, as a fraction of the size per second: 14.2 GiB/s of 121.7 GiB
# (dgx-spark-playbooks#116). Next are 2.9 of 32, 0.5 of 8 and 11.8 of 866 GiB/s; small machines get a lower limit.
MAX_FALL_RATIO, MIN_MAX_FALL_BYTES = 0.117, 2 << 30
# At rest, at least this part of the available memory is left at the reading that sees a fall. A steady collapse is
# critical only when it has lost more (`LASTS_RATIO` in the forecast).
SEEN_RATIO = 0.5
# From the start of reclaim to the event of a PSI trigger with a window of 0.5 s: 35 ms of stalls, and up to 50 ms
# until the kernel adds them up (kswapd's work counts as a stall: mm/vmscan.c, psi.c).
TRIGGER_SECONDS = 0.1
DEFAULT_RULES = PressureRules()


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


def seconds_at_rest(size_bytes: float, available_bytes: int, free_bytes: float = math.inf) -> float:
    """Return the seconds between two readings of a target that does not move: 0.1 to 1.

    At the fastest fall, half of the available bytes are left after this time. `free_bytes`: those that may go
    before a PSI trigger wakes the loop; infinite without one. A second is an exact multiple, so ticks stay on time.
    """
    fastest = max(MAX_FALL_RATIO * size_bytes, MIN_MAX_FALL_BYTES)
    unseen = SEEN_RATIO * available_bytes
    if free_bytes + TRIGGER_SECONDS * fastest <= unseen:
        return STILL_SECONDS
    readings = math.ceil(STILL_SECONDS * fastest / unseen) if unseen > 0 else math.inf
    return max(STILL_SECONDS / readings, FAST_SECONDS)


class RecentHigh:
    """The most that was available of each target within `FORECAST_SECONDS`, as the ticks saw it."""

    def __init__(self) -> None:
        self._highs: dict[str, tuple[float, int]] = {}

    def update(self, now: float, states: Mapping[str, Remaining]) -> float:
        """Add a tick, and return the least fall with which any target may get a forecast. 0 if it may have one."""
        self._highs = {name: self._find(name, now, one.available_bytes) for name, one in states.items()}
        return max(
            0.0,
            min(
                [
                    FORECAST_RATIO / MIN_MOVE_RATIO * one.min_move - (self._highs[name][1] - one.available_bytes)
                    for name, one in states.items()
                ],
                default=0.0,
            ),
        )

    def _find(self, name: str, now: float, available: int) -> tuple[float, int]:
        at, high = self._highs.get(name, (now, available))
        return (now, available) if available >= high or now - at > FORECAST_SECONDS else (at, high)


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


class Pacing:
    """Pace of a loop and its latest inputs. Not thread-safe.

    `ticked_at`: start of the last tick in monotonic seconds; None during a tick and after a failed one.
    `is_waiting`: a kill was counted, and its scope comes soon.
    """

    def __init__(self) -> None:
        self.pace: Pace = Pace()
        self.ticked_at: float | None = None
        self.is_restless: bool = False
        self.is_waiting: bool = False
        self._soonest = MIN_SECONDS
        self._max_age = 0.0
        self._rest_seconds = FAST_SECONDS
        self._ram: tuple[FallRate, Remaining] | None = None
        self._min_move = self._margin = 0.0
        self._fall_rates: dict[str, FallRate] = {}
        self._seconds_to_margin = math.inf
        self._highs = RecentHigh()
        self._forecast_after = 0.0
        self._probed: tuple[float, float] | None = None  # time and fall since the tick
        self._moved: Mapping[str, Remaining] = {}  # state at the last movement
        self._moved_at = -math.inf

    def on_pressure(
        self,
        pressure: Sequence[Pressure],
        now: float,
        usual: float,
        rules: PressureRules = DEFAULT_RULES,
        free_bytes: float = math.inf,
    ) -> None:
        """Update the pace during a tick. `usual`: seconds between two ticks at the usual pace.

        `free_bytes`: what may go of System RAM before a PSI trigger reports reclaim; infinite without a trigger.
        """
        self._keep(next_pace(self.pace, pressure, now), now, usual)
        states = find_remaining(pressure, rules)
        self._update_rates(now, states)
        self._max_age = FAST_SECONDS
        near = self._find_near(pressure, states) if self.pace.fast else {}
        self._set_limits(near or states)
        self._forecast_after = self._highs.update(now, near) if near else 0.0
        if near and has_moved(self._moved, near):
            self._moved, self._moved_at = near, now
        self.is_restless = self.pace.fast and now - self._moved_at < RESTLESS_SECONDS
        is_at_rest = not self.is_restless and self._max_age == STILL_SECONDS
        self._rest_seconds = self._find_rest(near, free_bytes) if is_at_rest else FAST_SECONDS

    def _set_limits(self, targets: Mapping[str, Remaining]) -> None:
        """Set the least fall that needs a tick. Loops take half the time of `min` for one or two targets."""
        min_move = margin = math.inf if targets else 0.0
        for one in targets.values():
            min_move = one.min_move if one.min_move < min_move else min_move
            margin = one.margin_bytes if one.margin_bytes < margin else margin
        self._min_move, self._margin = min_move, margin

    def _find_rest(self, near: Mapping[str, Remaining], free_bytes: float) -> float:
        unseen = {name: free_bytes if name == RAM else math.inf for name in near}
        return min(
            [
                seconds_at_rest(one.min_move / MIN_MOVE_RATIO, one.available_bytes, unseen[name])
                for name, one in near.items()
            ]
        )

    def _find_near(self, pressure: Sequence[Pressure], states: Mapping[str, Remaining]) -> Mapping[str, Remaining]:
        """Return the targets near exhaustion. If nothing but their use speaks for fast ticks, they may be older."""
        verdicts = [one for one in pressure if one.target in states and needs_fast_ticks(one, SLOW_RATIO)]
        if verdicts and not any(is_eventful(one) for one in verdicts):
            self._max_age = STILL_SECONDS
        return {one.target: states[one.target] for one in verdicts}

    def on_tick(self, started: float, seconds: float) -> None:
        """Record a successful tick and its duration."""
        self.ticked_at = started
        self._soonest = max(MIN_SECONDS, min(FAST_SECONDS, MIN_TICK_PAUSE_RATIO * seconds))

    def on_stall(self, now: float, usual: float) -> None:
        """Switch to fast ticks: a PSI trigger fired."""
        self._moved_at = now
        self._keep(next_pace(self.pace, (), now, stalled=True), now, usual)

    def interval(self, usual: float) -> float:
        """Return the seconds until memory must be read again. A fall shortens them."""
        rest = FAST_SECONDS if self.is_waiting else self._rest_seconds if self.pace.fast else usual
        return min(rest, usual, max(self._soonest, self._seconds_to_margin))

    def is_still(self, now: float, usual: float, moved_bytes: Callable[[], float]) -> bool:
        """Check that no tick is needed now: the last is recent, and nothing moved since.

        If use is not the only signal, the last tick is a tenth of a second old at most. `moved_bytes`: fall of
        System RAM.
        """
        if self.ticked_at is None:
            return False
        if now + self.interval(usual) / 2 >= self.ticked_at + min(usual, self._max_age):
            return False
        fall = moved_bytes()
        has_moved = fall >= self._min_move or fall <= -self._min_move
        if fall >= self._margin or (has_moved and self._is_due(now, fall)):
            return False
        self._probed = now, fall
        if self._seconds_to_margin < STILL_SECONDS + FAST_SECONDS:  # not at rest
            self._update_ram()
            self._seconds_to_margin = self._find_seconds()
        return True

    def _is_due(self, now: float, fall: float) -> bool:
        """Check that a movement is reported now: with the next forecast, or some time after the last tick."""
        is_old = self.ticked_at is None or now - self.ticked_at >= REPORT_SECONDS
        return is_old or fall >= self._forecast_after

    def _update_rates(self, now: float, states: Mapping[str, Remaining]) -> None:
        self._update_ram()
        if self._fall_rates.keys() != states.keys():
            self._fall_rates = {name: self._fall_rates.get(name) or FallRate() for name in states}
        soonest = math.inf
        for name, state in states.items():
            seconds = self._fall_rates[name].update(now, state)
            soonest = seconds if seconds < soonest else soonest
        self._ram = (self._fall_rates[RAM], states[RAM]) if RAM in states else None
        self._seconds_to_margin = soonest

    def _update_ram(self) -> None:
        """Add the last reading that was no tick."""
        if self._ram is not None and self._probed is not None:
            rate, at_tick = self._ram
            now, fall = self._probed
            rate.update(now, at_tick.after(fall))
        self._probed = None

    def _find_seconds(self) -> float:
        return min([one.seconds_to_margin for one in self._fall_rates.values()], default=math.inf)

    def _keep(self, pace: Pace, now: float, usual: float) -> None:
        if pace.fast != self.pace.fast:
            log.debug("sampling every %g s%s", pace.interval(usual), f": {pace.why}" if pace.fast else " again")
            self._moved_at = now
        self.pace = pace


def find_remaining(pressure: Iterable[Pressure], rules: PressureRules) -> dict[str, Remaining]:
    """Return the targets in system RAM by name. Targets without size or available memory are left out."""
    states = {}
    for one in pressure:
        size, left = one.size_bytes, one.available_bytes
        if one.kind in FAST_KINDS and isinstance(size, int) and isinstance(left, int):
            states[one.target] = remaining(left, MIN_MOVE_RATIO * size, count_above_threshold(one, left, rules))
    return states


def find_free(pools: Iterable[Pool]) -> float:
    """Return the free bytes of System RAM, which go without reclaim; infinity if unknown."""
    return next(
        (one.free_bytes for one in pools if one.id == RAM and not isinstance(one.free_bytes, Absent)), math.inf
    )


def count_above_threshold(verdict: Pressure, left: int, rules: PressureRules) -> float:
    """Return the available bytes that may go before use makes the level high or critical.

    Infinity if it is critical already.
    """
    if verdict.level >= Level.CRITICAL:
        return math.inf
    thresholds = rules.thresholds_for(verdict.target)
    entry = thresholds.critical if verdict.level >= Level.HIGH else thresholds.high
    if verdict.ratio >= entry:  # critical starts above its threshold
        return 0.0
    return left * (entry - verdict.ratio) / (1 - verdict.ratio)


def is_eventful(verdict: Pressure) -> bool:
    """Check for a signal other than use: a forecast of exhaustion, stalled tasks (PSI) or an OOM kill."""
    return verdict.corroborated or not isinstance(verdict.seconds_to_full, Absent)


def has_moved(before: Mapping[str, Remaining], now: Mapping[str, Remaining]) -> bool:
    """Check that a target near exhaustion is new, or that its available memory moved by `min_move`."""
    return any(
        name not in before or abs(one.available_bytes - before[name].available_bytes) >= one.min_move
        for name, one in now.items()
    )
