"""Silences: who need not be told of what, until when. Every silence has an end. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

LEAST_SECONDS, MOST_SECONDS = 1.0, 30 * 86_400.0
SILENCES_MOST = 100


class Silence(Struct, frozen=True):
    """Alerts of `event` about `target` (None: of any) are not told before `until_unix`. `made_by` is for people."""

    id: str
    until_unix: float
    created_unix: float
    event: str | None = None
    target: str | None = None
    comment: str = ""
    made_by: str = ""

    def covers(self, event: str, target: str, unix: float) -> bool:
        """Whether an alert is silenced now. A wall clock set back by more than the whole length ends it too."""
        in_time = unix < self.until_unix and unix > self.created_unix - MOST_SECONDS
        return in_time and self.event in (None, event) and self.target in (None, target)


def in_force(silences: Iterable[Silence], unix: float) -> tuple[Silence, ...]:
    """Those that have not ended."""
    return tuple(silence for silence in silences if unix < silence.until_unix)


def is_silenced(silences: Iterable[Silence], event: str, target: str, unix: float) -> bool:
    return any(silence.covers(event, target, unix) for silence in silences)
