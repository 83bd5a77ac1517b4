"""Query the history for one window: buckets, levels, gaps and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.events import Event
from memwatch.history.tier import Length
from memwatch.history.tiers import Bucket, History
from memwatch.snapshot import Snapshot
from memwatch_web.pages.annotations import Flag, Gap, Run, flags_of, gaps_of, older_flags, restarts_of, runs_of
from memwatch_web.pages.charts import Chart, charts_of
from memwatch_web.pages.time_range import Window

# A series that exists whenever memwatchd runs and never decreases during a run.
ALWAYS_THERE = "self.cpu_seconds"


class Past(Struct, frozen=True):
    """The stored history. `to_wall`: Unix time minus boot time, in seconds. `events`: newest first."""

    history: History
    to_wall: float
    tiers: Sequence[Length]
    events: Sequence[Event]

    def buckets(self, name: str, window: Window) -> list[Bucket]:
        """Return a series of the window with Unix times. Empty if the series does not exist yet."""
        start, end = window.start - self.to_wall, window.end - self.to_wall
        try:
            found = self.history.query(name, start, end, window.points)
        except KeyError:
            return []
        return [replace(one, boottime=round(one.boottime + self.to_wall, 3)) for one in found]


class Found(Struct, frozen=True):
    """Data of one window, which ends now at the latest.

    `buckets`: by series. `runs`: levels by target. `judged`: targets with a known level. `flags`: oldest first.
    """

    window: Window
    until: float
    charts: tuple[Chart, ...]
    buckets: Mapping[str, list[Bucket]]
    runs: Mapping[str, list[Run]]
    judged: frozenset[str]
    gaps: tuple[Gap, ...]
    flags: tuple[Flag, ...]

    def runs_behind(self, chart: Chart) -> list[Run]:
        return [run for target in chart.targets for run in self.runs[target]]


def found_in(past: Past, window: Window, names: Sequence[str], snapshot: Snapshot) -> Found:
    """Query one window. The buckets are those of the API for the same query."""
    charts = charts_of(names, snapshot)
    targets = [target for chart in charts for target in chart.targets]
    levels = {target: past.buckets(f"pressure.{target}.level", window) for target in targets}
    runs = {target: runs_of(buckets, window.grain_seconds) for target, buckets in levels.items()}
    beacon = past.buckets(ALWAYS_THERE, window)
    until = min(window.end, snapshot.unix)
    return Found(
        window=window,
        until=until,
        charts=charts,
        buckets={name: past.buckets(name, window) for name in names},
        runs=runs,
        judged=frozenset(target for target, buckets in levels.items() if buckets),
        gaps=tuple(gaps_of(beacon, window.start, until, window.grain_seconds, past.events)),
        flags=_flags(past, window, runs, beacon, snapshot),
    )


def _flags(
    past: Past, window: Window, runs: Mapping[str, list[Run]], beacon: Sequence[Bucket], snapshot: Snapshot
) -> tuple[Flag, ...]:
    """Return the events of a window. Before the event list begins they come from the history."""
    told = flags_of(reversed(past.events), window.start, window.end)
    began = past.events[-1].unix if past.events else snapshot.unix
    older = older_flags(runs, snapshot.labels, restarts_of(beacon), began)
    return tuple(sorted([*older, *told], key=lambda flag: flag.unix))
