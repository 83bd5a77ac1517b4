"""Whether a process that grows may be leaking: steadily, over the whole of a window. Pure rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from memwatch import units
from memwatch.model import Process

PARTS = 6
# Of all that came in the window, so much must still have come in its last part, and no part may have brought more.
STILL_RATIO, JUMP_RATIO = 1 / 24, 0.5


class LeakRules(Struct, frozen=True):
    """Growth is a suspected leak over `window_seconds`, by `least_bytes`, and by `least_ratio` of what it was."""

    window_seconds: float = 3600.0
    least_bytes: int = 64 << 20
    least_ratio: float = 0.1


class Suspect(Struct, frozen=True):
    """A process that grew steadily; `evidence` says how, in a sentence."""

    process: Process
    since_boottime: float
    grown_bytes: int
    evidence: str


def suspect_of(process: Process, readings: Sequence[tuple[float, int]], rules: LeakRules) -> Suspect | None:
    """`readings`: sizes by boot time, oldest first. The least size must have risen in each of six parts.

    The least, as a heap that is collected now and then is a saw. What is loaded at once, or levels off, is no
    leak.
    """
    newest = readings[-1][0]
    since, part_seconds = newest - rules.window_seconds, rules.window_seconds / PARTS
    troughs = troughs_of(readings, since, part_seconds)
    if readings[0][0] > since + part_seconds / 2 or len(troughs) < PARTS:
        return None
    rises = [after - before for before, after in pairwise(troughs)]
    grown = troughs[-1] - troughs[0]
    if grown < max(rules.least_bytes, rules.least_ratio * troughs[0]) or min(rises) <= 0:
        return None
    if rises[-1] < STILL_RATIO * grown or max(rises) > JUMP_RATIO * grown:
        return None
    return Suspect(process, since, grown, evidence_of(troughs, rules.window_seconds))


def troughs_of(readings: Iterable[tuple[float, int]], since: float, part_seconds: float) -> list[int]:
    """The least size in each part of the window; a part without a reading is left out."""
    least: dict[int, int] = {}
    for at, size in readings:
        part = min(PARTS - 1, int((at - since) / part_seconds))
        if at >= since and size <= least.get(part, size):
            least[part] = size
    return [least[part] for part in sorted(least)]


def evidence_of(troughs: Sequence[int], window_seconds: float) -> str:
    """In words: what was least in each part of the window."""
    sizes = " → ".join(units.size(size) for size in troughs)
    grown = units.size(troughs[-1] - troughs[0])
    return f"grew by {grown} in {units.duration(window_seconds)}, in every part of it: {sizes}"
