"""When the next tick is due: no drift, no burst after a pause. And what a jump of a clock means. Pure rules."""

from __future__ import annotations

from dataclasses import dataclass

# A clock set by less than this is NTP at work and not worth a word.
WALL_JUMP_SECONDS = 1.0
SUSPEND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Due:
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


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of all clocks, in seconds."""

    monotonic: float
    boottime: float
    wall: float


def suspended_seconds(before: Moment, now: Moment) -> float:
    """How long the machine slept between two moments; 0 when it did not."""
    slept = (now.boottime - before.boottime) - (now.monotonic - before.monotonic)
    return slept if slept >= SUSPEND_SECONDS else 0.0


def wall_jump_seconds(before: Moment, now: Moment) -> float:
    """By how much somebody set the wall clock between two moments; 0 when nobody did."""
    jump = (now.wall - before.wall) - (now.boottime - before.boottime)
    return jump if abs(jump) >= WALL_JUMP_SECONDS else 0.0
