"""Silences, which mute notifications of matching alerts until they end. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MIN_SECONDS, MAX_SECONDS = 1.0, 30 * 86_400.0
MAX_SILENCES = 100


class Silence(Struct, frozen=True):
    """Mute for notifications of alerts with this `event` and `target` (None: any) until `until_unix`.

    `made_by`: a name to display.
    """

    id: str
    until_unix: float
    created_unix: float
    event: str | None = None
    target: str | None = None
    comment: str = ""
    made_by: str = ""

    def covers(self, event: str, target: str, unix: float) -> bool:
        """Return True if an alert is silenced now.

        A silence also ends if the wall clock is set back to more than `MAX_SECONDS` before its creation.
        """
        in_time = unix < self.until_unix and unix > self.created_unix - MAX_SECONDS
        return in_time and self.event in (None, event) and self.target in (None, target)


def in_force(silences: Iterable[Silence], unix: float) -> tuple[Silence, ...]:
    """Return the silences that have not ended."""
    return tuple(silence for silence in silences if unix < silence.until_unix)


def is_silenced(silences: Iterable[Silence], event: str, target: str, unix: float) -> bool:
    return any(silence.covers(event, target, unix) for silence in silences)
