"""Sizes of the steps: known amounts that leave most of the GPU's free memory to others."""

from __future__ import annotations

from collections.abc import Sequence

MIB, GIB = 1 << 20, 1 << 30
SAFE_PART = 4
FIRST_BYTES, SECOND_BYTES = 256 * MIB, GIB
MIN_BYTES = 32 * MIB
GRANULE_BYTES = 2 * MIB


class TooFullError(Exception):
    """A GPU without enough free memory for a test."""


def plan_steps(free: Sequence[int], wanted: Sequence[int] = ()) -> list[int]:
    """Return sizes that together are a quarter of the smallest free figure at most.

    Without `wanted`: 256 MiB, 1 GiB, and the rest of the quarter.
    """
    left = min(free) // SAFE_PART // GRANULE_BYTES * GRANULE_BYTES
    if left < MIN_BYTES:
        raise TooFullError(f"only {min(free) // MIB} MiB are free, and the test takes a quarter of it at most")
    steps = []
    for size in wanted or (FIRST_BYTES, SECOND_BYTES, left):
        size = min(size, left)
        if size >= MIN_BYTES:
            steps.append(size)
            left -= size
    return steps
