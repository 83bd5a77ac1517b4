"""Moments of a demo that the tests of pages show."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import msgspec

from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import snapshot_from
from memwatch.reporting.recording import read_lines
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import HEADER


class Moments(NamedTuple):
    """`fullest`: the most memory in use, which has the longest figures."""

    first: Snapshot
    fullest: Snapshot
    last: Snapshot


@cache
def moments_of(demo: str) -> Moments:
    """Return these moments. Only these are built: all snapshots of all demos take 3 s of CPU time."""
    lines = [line for line in read_lines(path_of(demo)) if isinstance(line, bytes) and not line.startswith(HEADER)]
    fullest = max(lines, key=lambda line: _used(msgspec.json.decode(line)))
    return Moments(*map(snapshot_from, (lines[0], fullest, lines[-1])))


def _used(snapshot: dict[str, Any]) -> int:
    return sum(pool["used_bytes"] for pool in snapshot["pools"] if isinstance(pool["used_bytes"], int))
