"""Silences, which mute notifications of matching alerts until they end. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.clock import CLOCK_SET_SECONDS, Moment
from memwatch.core.doc import Doc

MIN_SECONDS, MAX_SECONDS = 1.0, 30 * 86_400.0
MAX_SILENCES = 100


class Silence(Struct, frozen=True):
    """Mute for notifications of alerts with this `event` and `target` (None: any).

    It ends at `until_boottime`, in seconds since boot including suspend, so that setting the wall clock neither
    extends nor shortens it. Wall clock times are for display and for the next boot: JSON has only them.
    `made_by`: a name to display.
    """

    id: str
    until_unix: float
    created_unix: float
    until_boottime: float = 0.0
    event: Annotated[str | None, Doc("Muted event; null: all.")] = None
    target: Annotated[str | None, Doc("Muted target; null: all.")] = None
    comment: str = ""
    made_by: Annotated[str, Doc("User of this machine, user or token of the login, or client certificate.")] = ""

    def covers(self, event: str, target: str) -> bool:
        return self.event in (None, event) and self.target in (None, target)


def in_force(silences: Iterable[Silence], boottime: float) -> tuple[Silence, ...]:
    """Return the silences that have not ended."""
    return tuple(silence for silence in silences if boottime < silence.until_boottime)


def current(silences: Iterable[Silence], moment: Moment) -> tuple[Silence, ...]:
    """Return the silences in force, with times by the wall clock of this moment."""
    return tuple(by_wall_clock(one, moment) for one in in_force(silences, moment.boottime))


def is_silenced(silences: Iterable[Silence], event: str, target: str) -> bool:
    """Return True if one of these silences, all in force, mutes the alert."""
    return any(silence.covers(event, target) for silence in silences)


def by_wall_clock(silence: Silence, moment: Moment) -> Silence:
    """Return the silence with its times moved along if the wall clock was set since it was created."""
    moved = moment.wall - moment.boottime + silence.until_boottime - silence.until_unix
    if abs(moved) < CLOCK_SET_SECONDS:
        return silence
    created_unix = max(0.0, silence.created_unix + moved)
    return replace(silence, until_unix=silence.until_unix + moved, created_unix=created_unix)
