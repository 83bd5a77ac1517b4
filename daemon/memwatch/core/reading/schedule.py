"""Schedule of ticks without drift or bursts, detection of clock jumps and suspend, and pace. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from memwatch.core.clock import Moment
from memwatch.core.model import Absent
from memwatch.core.snapshot import Pressure

# Smaller steps of the wall clock are usual with NTP and are not reported.
WALL_JUMP_SECONDS = 1.0
SUSPEND_SECONDS = 1.0


class Due(Struct, frozen=True):
    """Monotonic time of the next tick, and number of ticks missed before it."""

    at: float
    missed: int


def next_due(due: float, interval: float, now: float) -> Due:
    """Return the tick after the one due at `due`: on the same grid, in the future, at most one interval away."""
    following = due + interval
    if following > now:
        return Due(following, 0)
    missed = int((now - following) / interval) + 1
    return Due(following + missed * interval, missed)


def suspended_seconds(before: Moment, now: Moment) -> float:
    """Return the seconds that the machine was suspended between two moments, or 0."""
    slept = (now.boottime - before.boottime) - (now.monotonic - before.monotonic)
    return slept if slept >= SUSPEND_SECONDS else 0.0


def wall_jump_seconds(before: Moment, now: Moment) -> float:
    """Return the step of the wall clock between two moments in seconds, or 0."""
    jump = (now.wall - before.wall) - (now.boottime - before.boottime)
    return jump if abs(jump) >= WALL_JUMP_SECONDS else 0.0


# Near exhaustion, sampling is faster: ten times a second above FAST_RATIO while memory moves, until use is below
# SLOW_RATIO.
FAST_SECONDS = 0.1
FAST_RATIO, SLOW_RATIO = 0.60, 0.57
FAST_FULL_SECONDS = 60.0
SLOW_AFTER_SECONDS = 30.0
# Kinds that use system RAM. Dedicated GPU memory is read once a second at any pace.
FAST_KINDS = frozenset(
    {"system_ram", "cgroup", "gtt", "gpu_buffers", "npu_buffers", "cuda_pool", "metal_working_set"}
)


class Pace(Struct, frozen=True):
    """Pace of the ticks: fast or not, since when fast ticks are not needed, and the reason for fast ticks."""

    fast: bool = False
    calm_since: float | None = None
    why: str = ""

    def interval(self, usual: float) -> float:
        return min(FAST_SECONDS, usual) if self.fast else usual


def next_pace(before: Pace, pressure: Iterable[Pressure], now: float, stalled: bool = False) -> Pace:
    """Return the pace after a tick: fast at once, slow after SLOW_AFTER_SECONDS without a reason for fast ticks."""
    line = SLOW_RATIO if before.fast else FAST_RATIO
    near = _find_near(pressure, line)
    if stalled or near is not None:
        return Pace(fast=True, why=before.why or _why(near))
    if not before.fast:
        return before
    calm_since = now if before.calm_since is None else before.calm_since
    return Pace() if now - calm_since >= SLOW_AFTER_SECONDS else Pace(True, calm_since, before.why)


def _find_near(pressure: Iterable[Pressure], line: float) -> Pressure | None:
    for one in pressure:
        if needs_fast_ticks(one, line):
            return one
    return None


def needs_fast_ticks(pressure: Pressure, line: float) -> bool:
    """Check that the use of a target is at least `line`, or that it will be full within a minute."""
    seconds = pressure.seconds_to_full
    if pressure.kind not in FAST_KINDS:
        return False
    return pressure.ratio >= line or (not isinstance(seconds, Absent) and seconds < FAST_FULL_SECONDS)


def _why(near: Pressure | None) -> str:
    if near is None:
        return "tasks stall on memory (PSI)"
    if near.ratio >= FAST_RATIO:
        return f"{near.target} is {near.ratio * 100:.0f}% used"
    return f"{near.target} will be full within {FAST_FULL_SECONDS:.0f} s"
