"""Moments of a demo that the tests of pages show."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from memwatch.core.snapshot import Snapshot
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames


class Moments(NamedTuple):
    """`fullest`: the most memory in use, which has the longest figures."""

    first: Snapshot
    fullest: Snapshot
    last: Snapshot


@cache
def moments_of(demo: str) -> Moments:
    """Return these moments. The whole recording is read once."""
    frames = list(read_frames(path_of(demo)))
    return Moments(frames[0], max(frames, key=_used), frames[-1])


def _used(snapshot: Snapshot) -> int:
    return sum(pool.used_bytes for pool in snapshot.pools if isinstance(pool.used_bytes, int))
