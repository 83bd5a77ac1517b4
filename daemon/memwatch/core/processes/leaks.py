"""Detection of suspected leaks: steady growth over a whole window. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from memwatch.core import units
from memwatch.core.model import Process

PARTS = 6
# Fractions of the window's growth: the minimum in its last part, and the maximum in any part.
STILL_RATIO, JUMP_RATIO = 1 / 24, 0.5


class LeakRules(Struct, frozen=True):
    """Thresholds of a suspected leak: growth over `window_seconds` by `min_bytes` and by `min_ratio`."""

    window_seconds: float = 3600.0
    min_bytes: int = 64 << 20
    min_ratio: float = 0.1


class LeakSuspect(Struct, frozen=True):
    """A process that grew steadily. `evidence` describes the growth in a sentence."""

    process: Process
    since_boottime: float
    grown_bytes: int
    evidence: str


def find_suspect(process: Process, readings: Sequence[tuple[float, int]], rules: LeakRules) -> LeakSuspect | None:
    """Return a suspect if the minimum size rose in each of six parts of the window. `readings`: oldest first.

    The minimum is used because a garbage-collected heap is a sawtooth. Growth in a single step, or growth that
    levels off, is not a leak.
    """
    newest = readings[-1][0]
    since, part_seconds = newest - rules.window_seconds, rules.window_seconds / PARTS
    troughs = compute_troughs(readings, since, part_seconds)
    if readings[0][0] > since + part_seconds / 2 or len(troughs) < PARTS:
        return None
    rises = [after - before for before, after in pairwise(troughs)]
    grown = troughs[-1] - troughs[0]
    if grown < max(rules.min_bytes, rules.min_ratio * troughs[0]) or min(rises) <= 0:
        return None
    if rises[-1] < STILL_RATIO * grown or max(rises) > JUMP_RATIO * grown:
        return None
    return LeakSuspect(process, since, grown, describe_growth(troughs, rules.window_seconds))


def compute_troughs(readings: Iterable[tuple[float, int]], since: float, part_seconds: float) -> list[int]:
    """Return the minimum size in each part of the window. A part without a reading is left out."""
    least: dict[int, int] = {}
    for at, size in readings:
        part = min(PARTS - 1, int((at - since) / part_seconds))
        if at >= since and size <= least.get(part, size):
            least[part] = size
    return [least[part] for part in sorted(least)]


def describe_growth(troughs: Sequence[int], window_seconds: float) -> str:
    """Describe the minimum size in each part of the window."""
    sizes = " → ".join(units.size(size) for size in troughs)
    grown = units.size(troughs[-1] - troughs[0])
    return f"grew steadily by {grown} in {units.duration(window_seconds)}: {sizes}"
