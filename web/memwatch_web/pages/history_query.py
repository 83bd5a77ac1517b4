"""Query the history for one window: buckets, levels, gaps and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.model import Pool
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history.all_series import AllSeries
from memwatch.monitor.history.tier import TierSpec
from memwatch.monitor.history.tiers import Bucket
from memwatch.monitor.render.composition import find_sources
from memwatch_web.pages.annotations import (
    Annotation,
    Gap,
    LevelSpan,
    build_annotations,
    build_older_annotations,
    find_gaps,
    find_level_spans,
    find_restarts,
)
from memwatch_web.pages.charts import Chart, build_charts
from memwatch_web.pages.time_range import TimeWindow

# A series that exists whenever memwatchd runs and never decreases during a run.
REFERENCE_SERIES = "self.cpu_seconds"
# Composition takes four series or more for each pool.
MAX_STACKED = 4


class HistoryInput(Struct, frozen=True):
    """The stored history. `to_wall`: Unix time minus boot time, in seconds. `events`: newest first."""

    history: AllSeries
    to_wall: float
    tiers: Sequence[TierSpec]
    events: Sequence[Event]

    def buckets(self, name: str, window: TimeWindow) -> list[Bucket]:
        """Return a series of the window with Unix times. Empty if the series does not exist yet."""
        start, end = window.start - self.to_wall, window.end - self.to_wall
        try:
            found = self.history.query(name, start, end, window.points)
        except KeyError:
            return []
        return [replace(one, boottime=round(one.boottime + self.to_wall, 3)) for one in found]


class WindowData(Struct, frozen=True):
    """Data of one window, which ends now at the latest.

    `buckets`: by series. `spans`: levels by target. `judged`: targets with a known level. `annotations`: oldest
    first. `steps`: seconds between the points of a series. `stacked`: pools whose composition is drawn; `buckets`
    has its series too.
    """

    window: TimeWindow
    until: float
    charts: tuple[Chart, ...]
    buckets: Mapping[str, list[Bucket]]
    spans: Mapping[str, list[LevelSpan]]
    judged: frozenset[str]
    gaps: tuple[Gap, ...]
    annotations: tuple[Annotation, ...]
    steps: Mapping[str, float]
    stacked: tuple[Pool, ...] = ()

    def spans_behind(self, chart: Chart) -> list[LevelSpan]:
        return [run for target in chart.targets for run in self.spans[target]]


def query_window(past: HistoryInput, window: TimeWindow, names: Sequence[str], snapshot: Snapshot) -> WindowData:
    """Query one window. The buckets are those of the API for the same query."""
    charts = build_charts(names, snapshot, past.history.titles())
    targets = [target for chart in charts for target in chart.targets]
    stacked = choose_stacked(charts, names, snapshot)
    sources = [name for pool in stacked for name in find_sources(pool, snapshot.shares).names]
    levels = {target: past.buckets(f"pressure.{target}.level", window) for target in targets}
    runs = {target: find_level_spans(buckets, window.grain_seconds) for target, buckets in levels.items()}
    beacon = past.buckets(REFERENCE_SERIES, window)
    until = min(window.end, snapshot.unix)
    return WindowData(
        window=window,
        until=until,
        charts=charts,
        buckets={name: past.buckets(name, window) for name in dict.fromkeys([*names, *sources])},
        spans=runs,
        judged=frozenset(target for target, buckets in levels.items() if buckets),
        gaps=tuple(find_gaps(beacon, window.start, until, window.grain_seconds, past.events)),
        annotations=_flags(past, window, runs, beacon, snapshot),
        steps={name: max(window.grain_seconds, past.history.step_seconds(name)) for name in names},
        stacked=stacked,
    )


def choose_stacked(charts: Sequence[Chart], names: Sequence[str], snapshot: Snapshot) -> tuple[Pool, ...]:
    """Return the pools whose composition is drawn: those whose use is shown, up to MAX_STACKED."""
    shown = {chart.id for chart in charts}
    pools = [pool for pool in snapshot.pools if pool.id in shown and f"pool.{pool.id}.used_bytes" in names]
    return tuple(pools[:MAX_STACKED])


def _flags(
    past: HistoryInput,
    window: TimeWindow,
    runs: Mapping[str, list[LevelSpan]],
    beacon: Sequence[Bucket],
    snapshot: Snapshot,
) -> tuple[Annotation, ...]:
    """Return the events of a window. Before the event list begins they come from the history."""
    annotations = build_annotations(reversed(past.events), window.start, window.end)
    began = past.events[-1].unix if past.events else snapshot.unix
    older = build_older_annotations(runs, snapshot.labels, find_restarts(beacon), began)
    return tuple(sorted([*older, *annotations], key=lambda flag: flag.unix))
