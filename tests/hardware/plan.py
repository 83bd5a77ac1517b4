"""Sizes of the steps: known amounts that leave most of the GPU's free memory to others."""

from __future__ import annotations

from collections.abc import Sequence

MIB, GIB = 1 << 20, 1 << 30
# Of the headroom, and of what is free without reclaim: on a machine whose GPU uses System RAM, reclaim is slow.
SAFE_PART, SAFE_CERTAIN_PART = 4, 2
FIRST_BYTES, SECOND_BYTES = 256 * MIB, GIB
MIN_BYTES = 32 * MIB
GRANULE_BYTES = 2 * MIB


class TooFullError(Exception):
    """A GPU without enough free memory for a test."""


def plan_steps(headroom: Sequence[int], certain: Sequence[int], wanted: Sequence[int] = ()) -> list[int]:
    """Return sizes that together are a quarter of every headroom, and half of every free figure, at most.

    Without `wanted`: 256 MiB, 1 GiB, and the rest.
    """
    safe = [size // SAFE_PART for size in headroom] + [size // SAFE_CERTAIN_PART for size in certain]
    left = min(safe, default=0) // GRANULE_BYTES * GRANULE_BYTES
    if left < MIN_BYTES:
        most, free = (min(figures, default=0) // MIB for figures in (headroom, certain))
        raise TooFullError(f"{most} MiB can be allocated and {free} MiB are free, and the test takes a small part")
    steps = []
    for size in wanted or (FIRST_BYTES, SECOND_BYTES, left):
        size = min(size, left)
        if size >= MIN_BYTES:
            steps.append(size)
            left -= size
    return steps
