"""Test how far figures moved between two readings."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Bytes
from memwatch.core.reading.collector_runner import moved_between
from support.fakes import GIB
from support.sample_snapshots import many_owners


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        (GIB, 3 * GIB, 2.0 * GIB),
        (3 * GIB, GIB, 2.0 * GIB),
        (GIB, GIB, 0.0),
        (Absent.STALE, Absent.STALE, 0.0),
        (Absent.STALE, GIB, math.inf),
        (GIB, Absent.STALE, math.inf),
        (Absent.STALE, Absent.NOT_PERMITTED, math.inf),
    ],
)
def test_figure_that_appears_or_vanishes_moved_without_a_limit(before: Bytes, now: Bytes, moved: float) -> None:
    (share,) = many_owners().shares

    assert moved_between([replace(share, used_bytes=before)], [replace(share, used_bytes=now)]) == moved
