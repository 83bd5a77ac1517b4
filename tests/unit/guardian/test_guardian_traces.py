"""Test the guardian on recorded and generated collapses, and on healthy machines that look alike."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from memwatch.core.pressure.forecast import Trend
from memwatchd.guardian.own_reading import Adjustment, judge_ram, next_pause
from memwatchd.guardian.records import Limits, Past, State
from memwatchd.guardian.rules import decide
from support.guardian_states import candidate
from support.paths import TESTS
from support.trace_file import Trace, load_trace, read_size

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
MAX_SECONDS, MAX_READINGS = 7200.0, 20_000


def find_action(trace: Trace) -> float | None:
    """Return when the guardian acts on the only process, which has half of the memory and grows; None: never."""
    size = trace.size - read_size(trace.header.huge_pages_bytes)
    resident = trace.header.resident
    # "auto" is learned by the daemon over ten minutes: here the guardian runs without it.
    adjustment = Adjustment(resident_bytes=read_size(resident) if resident and resident != "auto" else 0)
    one = candidate(10, size // 2, 300e6)
    end, trend, past, at = min(trace.header.seconds, MAX_SECONDS), Trend(), Past(), 0.0
    while at < end:
        available = int(trace.value("available_bytes", at) + trace.value("arc_bytes", at))
        available = min(size, max(0, available))
        trend = trend.with_point(at, available, size, is_fast=True)
        forecast = trend.forecast(size)
        stalled = trace.value("psi_full_seconds", at) - trace.value("psi_full_seconds", max(0.0, at - 10.0))
        pool = judge_ram(size, available, forecast and forecast.seconds, partial(bool, stalled >= 2), adjustment)
        decision, past = decide(State(at, at, (pool,), (one,)), Limits(), past)
        if decision.kind == "act":
            return at
        at += max(next_pause(pool), end / MAX_READINGS)
    return None


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_nothing_ends_on_a_healthy_machine(path: Path) -> None:
    assert find_action(load_trace(path)) is None


@pytest.mark.parametrize("path", WEDGES, ids=lambda path: path.stem)
def test_collapse_ends_a_process_before_the_machine_stops_responding(path: Path) -> None:
    trace = load_trace(path)
    at = find_action(trace)

    assert (at is None) == (path.stem in ROOM_LEFT)
    assert at is None or trace.header.ends is None or at <= trace.header.ends
