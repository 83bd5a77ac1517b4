"""When the next tick is due: no drift, no burst after a pause. And what a jump of a clock means. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from memwatch.clock import Moment
from memwatch.model import Absent
from memwatch.snapshot import Pressure

# A clock set by less than this is NTP at work and not worth a word.
WALL_JUMP_SECONDS = 1.0
SUSPEND_SECONDS = 1.0


class Due(Struct, frozen=True):
    """The next tick's monotonic time, and how many were missed for good before it."""

    at: float
    missed: int


def next_due(due: float, interval: float, now: float) -> Due:
    """The tick after the one that was due at `due`: on the same grid, in the future, at most one interval away."""
    following = due + interval
    if following > now:
        return Due(following, 0)
    missed = int((now - following) / interval) + 1
    return Due(following + missed * interval, missed)


def suspended_seconds(before: Moment, now: Moment) -> float:
    """How long the machine slept between two moments; 0 when it did not."""
    slept = (now.boottime - before.boottime) - (now.monotonic - before.monotonic)
    return slept if slept >= SUSPEND_SECONDS else 0.0


def wall_jump_seconds(before: Moment, now: Moment) -> float:
    """By how much somebody set the wall clock between two moments; 0 when nobody did."""
    jump = (now.wall - before.wall) - (now.boottime - before.boottime)
    return jump if abs(jump) >= WALL_JUMP_SECONDS else 0.0


# The closer to the edge, the faster the look: from here on ten times a second.
FAST_SECONDS = 0.1
FAST_RATIO, SLOW_RATIO = 0.60, 0.57
FAST_FULL_SECONDS = 60.0
SLOW_AFTER_SECONDS = 30.0
# What fills System RAM. A GPU's own memory is asked for once a second, however often one ticks.
FAST_KINDS = frozenset(
    {"system_ram", "cgroup", "gtt", "gpu_buffers", "npu_buffers", "cuda_pool", "metal_working_set"}
)


class Pace(Struct, frozen=True):
    """Whether ticks come fast, since when they need not, and what made them."""

    fast: bool = False
    calm_since: float | None = None
    why: str = ""

    def interval(self, usual: float) -> float:
        return min(FAST_SECONDS, usual) if self.fast else usual


def next_pace(before: Pace, pressure: Iterable[Pressure], now: float, stalled: bool = False) -> Pace:
    """The pace after a tick: fast at once, slow only after it has been calm for a while."""
    line = SLOW_RATIO if before.fast else FAST_RATIO
    near = next((one for one in pressure if needs_fast_ticks(one, line)), None)
    if stalled or near is not None:
        return Pace(fast=True, why=before.why or _why(near))
    if not before.fast:
        return before
    calm_since = now if before.calm_since is None else before.calm_since
    return Pace() if now - calm_since >= SLOW_AFTER_SECONDS else Pace(True, calm_since, before.why)


def needs_fast_ticks(pressure: Pressure, line: float) -> bool:
    """Whether it is so near its end, or will be within a minute."""
    seconds = pressure.seconds_to_full
    if pressure.kind not in FAST_KINDS:
        return False
    return pressure.ratio >= line or (not isinstance(seconds, Absent) and seconds < FAST_FULL_SECONDS)


def _why(near: Pressure | None) -> str:
    if near is None:
        return "the kernel says that tasks wait for memory"
    if near.ratio >= FAST_RATIO:
        return f"{near.target} is {near.ratio * 100:.0f}% used"
    return f"{near.target} will be full within {FAST_FULL_SECONDS:.0f} s"
