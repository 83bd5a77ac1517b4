"""The guardian as a dry run beside a demo: it reads the frames of a round, in their own time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from memwatch.core.model import Absent, Process, find_system_ram
from memwatch.core.pressure.forecast import Trend
from memwatch.core.snapshot import Level, Snapshot
from memwatchd.guardian.growth import Growth
from memwatchd.guardian.machine import Known, build_candidate, ram_places
from memwatchd.guardian.own_reading import judge_ram
from memwatchd.guardian.records import Adjustment, Candidate, Decision, Limits, Past, State
from memwatchd.guardian.rules import decide, find_short_pool
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames

DEMOS = ("dgx-spark", "gh200", "h100x8-mig", "jetson-orin", "macbook", "rtx4090", "strix-halo")


class DemoRun(NamedTuple):
    """`decisions`: those of short memory that are no wait, each sentence once, with the seconds of the round.

    `lowest`: the last decision without a shortage, at the least available memory.
    """

    decisions: tuple[tuple[float, Decision], ...]
    lowest: Decision


def list_candidates(snapshot: Snapshot) -> tuple[Candidate, ...]:
    in_ram = ram_places(snapshot)
    return tuple(build_candidate(one, _place(one), in_ram, 0.5, False) for one in snapshot.processes if one.visible)


def _place(process: Process) -> Known:
    """Return the cgroup of a process by its unit, which a demo has; it has no /proc."""
    began, unit = process.start_time, process.unit if isinstance(process.unit, str) else ""
    slices = "user.slice/user-1000.slice" if unit.startswith(("session-", "app-")) else "system.slice"
    return Known(0, 0.0 if isinstance(began, Absent) else began, 0, f"/{slices}/{unit}")


def run_demo(name: str) -> DemoRun:
    growth, trend, past = Growth(), Trend(), Past()
    found: dict[str, tuple[float, Decision]] = {}
    lowest, least, began = Decision("nothing", ""), 1 << 62, None
    for frame in read_frames(path_of(name)):
        at = frame.unix
        began = at if began is None else began
        pool = find_system_ram(frame.pools)
        if pool is None or not isinstance(pool.available_bytes, int):
            continue
        available = pool.available_bytes
        trend = trend.with_point(at, available, pool.size_bytes, is_fast=True)
        forecast = trend.forecast(pool.size_bytes)
        state = judge_ram(pool.size_bytes, available, forecast and forecast.seconds, lambda: False, Adjustment())
        growth.add_pool(at, state)
        seen = list_candidates(frame)
        growth.add(at, at, seen)
        short, _ = find_short_pool((state,))
        grown, fall, most = growth.measure(seen) if short else ((), None, 0.0)
        decision, past = decide(State(at, at, (state,), grown, frozenset(), fall, most), Limits(), past)
        if short and decision.kind != "wait":
            found.setdefault(decision.victim.title if decision.victim else decision.kind, (at - began, decision))
        elif not short and available < least and state.level < Level.CRITICAL:
            least, lowest = available, decision
    return DemoRun(tuple(found.values()), lowest)


def list_runs() -> Iterator[tuple[str, DemoRun]]:
    for name in DEMOS:
        yield name, run_demo(name)
