"""Test the guardian on recorded and generated collapses, and on healthy machines that look alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.guardian_collapses import CULPRIT, DAY_SECONDS, act_on_trace
from support.paths import TESTS
from support.trace_file import load_trace

TRACES = sorted((TESTS / "traces").glob("*.jsonl"))
HEALTHY = [path for path in TRACES if path.stem.startswith("healthy-")]
WEDGES = [path for path in TRACES if path.stem.startswith("wedge-")]
# They stop responding while more is available than the critical threshold leaves.
ROOM_LEFT = {
    "wedge-aurora-zram-exhausted",
    "wedge-earlyoom-320",
    "wedge-gb10-profile-run",
    "wedge-gb10-silent-stop",
    "wedge-livelock-room-left",
    "wedge-spark-fragmentation",
    "wedge-strix-halo-evicted",
}
# Full 0.9 s after 80 %: no scan of the daemon sees what grows.
TOO_FAST = {"wedge-1-gib-hog"}


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_nothing_ends_on_a_healthy_machine(path: Path) -> None:
    assert act_on_trace(load_trace(path)) == (None, None)


@pytest.mark.long
@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_nothing_ends_on_a_healthy_machine_in_a_day(path: Path) -> None:
    """Its recorded time runs to and fro, so that nothing jumps: each fall of memory is also a rise, and back."""
    assert act_on_trace(load_trace(path), DAY_SECONDS) == (None, None)


@pytest.mark.parametrize("path", WEDGES, ids=lambda path: path.stem)
def test_collapse_ends_its_culprit_before_the_machine_stops_responding(path: Path) -> None:
    trace = load_trace(path)
    victim, at = act_on_trace(trace)

    assert victim == (None if path.stem in ROOM_LEFT | TOO_FAST else CULPRIT)
    assert at is None or trace.header.ends is None or at <= trace.header.ends
