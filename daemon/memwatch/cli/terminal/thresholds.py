"""Thresholds of the levels at their place on a bar or chart: those that the daemon judges by. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memwatch.core.snapshot import LEVEL_WORDS

Json = dict[str, Any]
LEVELS = LEVEL_WORDS[1:]


class Mark(NamedTuple):
    """A threshold. `at`: fraction of the bar, 0 to 1. `ratio`: the setting."""

    level: str
    at: float
    ratio: float


def marks_of(place: Json, pressure: Sequence[Json]) -> tuple[Mark, ...]:
    """Return the thresholds of a pool or limited share by rising level. Empty if it is not judged.

    The judged memory may be less than the bar: without huge pages, without resident memory, or a budget.
    """
    verdict = next((one for one in pressure if one["target"] == place["id"]), None)
    thresholds = verdict and verdict.get("thresholds")
    size = size_of(place)
    if not verdict or not thresholds or not size:
        return ()
    judged = verdict["size_bytes"] or size
    resident = verdict.get("resident_bytes") or 0
    available, counted = available_of(place), verdict["available_bytes"]
    beyond = available - counted if available is not None and counted is not None else 0
    found = []
    for level in LEVELS:
        left = (1 - thresholds[level]) * (judged - resident) + beyond
        found.append(Mark(level, 1 - left / size, thresholds[level]))
    return tuple(one for one in found if 0 < one.at <= 1)


def size_of(place: Json) -> int:
    """Return the size of a pool or the limit of a share, 0 if it is unknown."""
    return place.get("size_bytes") or place.get("limit_bytes") or 0


def available_of(place: Json) -> int | None:
    """Return the available bytes of a pool, or those below the limit of a share."""
    if "available_bytes" in place:
        known: int | None = place["available_bytes"]
        return known
    used, limit = place["used_bytes"], place["limit_bytes"]
    return limit - used if used is not None and limit is not None else None


def style_at(fraction: float | None, marks: Sequence[Mark], plain: str = "accent") -> str:
    """Return the level that begins at or below a fraction of the bar, as a style."""
    if fraction is None:
        return ""
    return next((one.level for one in reversed(marks) if fraction >= one.at), plain)
