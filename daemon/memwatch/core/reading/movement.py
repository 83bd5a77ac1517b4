"""Change of shares between two results of a collector. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memwatch.core.model import Bytes, Share


def moved_between(before: Sequence[Share], now: Sequence[Share]) -> float:
    """Return the largest change of a share in bytes; infinity if one appeared, disappeared or lost its value."""
    used = {share.id: share.used_bytes for share in before}
    if used.keys() != {share.id for share in now}:
        return math.inf
    pairs = [(used[share.id], share.used_bytes) for share in now]
    return max((_distance(*pair) for pair in pairs), default=0)


def _distance(before: Bytes, now: Bytes) -> float:
    if isinstance(before, int) and isinstance(now, int):
        return abs(now - before)
    return 0 if now is before else math.inf
