"""View of one history window: charts, statistics and events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.snapshot import Level, Snapshot
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render.memory_map import build_maps
from memwatch.reporting.render.words import duration, timestamp
from memwatch_monitor.history.holders import build_figures, list_holders, series_name
from memwatch_monitor.history.series import collect_figures
from memwatch_web.api.history_parameters import build_file_name
from memwatch_web.pages.charts import (
    Annotation,
    Chart,
    Curve,
    Gap,
    LevelSpan,
    build_charts,
    describe_dropped,
    find_pool,
    most_telling,
)
from memwatch_web.pages.devices import short_label
from memwatch_web.pages.history_chart import MAX_NOW_SECONDS, ChartPicture, EventMark, draw_chart, find_edges
from memwatch_web.pages.history_data import (
    HistoryInput,
    Moves,
    Range,
    TimeWindow,
    WindowData,
    WindowLink,
    available_ranges,
    build_data,
    build_moves,
    find_seconds_to_full,
    query_window,
)

AROUND_SECONDS = 300.0
# An event may be recorded this long before or after its incident.
LATE_SECONDS = 5.0
# The last value is current if it is at most this number of points old.
RECENT = 3
EXACT_SECONDS = 10.0
# A window "since start" ends at most this long ago.
MAX_AGE = 120.0


class HistoryQuery(Struct, frozen=True):
    """A parsed query. `series`: the selected series, may be empty. `names`: those shown. `path`: page of links.

    `left_out`: default series of this machine that are not drawn.
    """

    window: TimeWindow
    series: tuple[str, ...]
    names: tuple[str, ...]
    path: str = "history"
    left_out: int = 0

    def href(self, series_slice: WindowLink, range_name: str | None = None) -> str:
        """Return a permalink to another time range of the same series."""
        return link(self.path, range_name or self.window.range.name, self.series, series_slice)

    def export(self, form: str) -> str:
        """Return the API link for the same data."""
        window = self.window
        bounds = [("from", timestamp(window.start)), ("to", timestamp(window.end)), ("points", str(window.points))]
        query = [("series", ",".join(self.names)), *bounds]
        return "api/v1/history?" + urlencode([*query, ("format", form)] if form != "json" else query, safe=":,")


def link(path: str, range_name: str, series: Sequence[str], series_slice: WindowLink) -> str:
    query = [("range", range_name)]
    if series:
        query.append(("series", ",".join(series)))
    if series_slice.start is not None and series_slice.end is not None:
        query += [("from", timestamp(series_slice.start)), ("to", timestamp(series_slice.end))]
    return f"{path}?{urlencode(query, safe=':,')}"


class SeriesSummary(Struct, frozen=True):
    """Statistics of one series. `last` is None if the series ended before the end of the window."""

    curve: Curve
    minimum: float | None
    mean: float | None
    maximum: float | None
    maximum_unix: float | None
    last: float | None


class ChartView(Struct, frozen=True):
    """A chart with its statistics. `top`: end of the scale. `levels`: time spent at each level, as text."""

    chart: Chart
    figures: tuple[SeriesSummary, ...]
    top: float
    picture: ChartPicture
    levels: str


class EventEntry(Struct, frozen=True):
    """An event in the list, with a link to the minutes around it. `number`: its label in the charts.

    `incident`: the page of its incident, empty without one. `chart`: the only chart that shows it, None for all.
    """

    number: int
    annotation: Annotation
    href: str
    incident: str = ""
    chart: str | None = None


class HistoryView(Struct, frozen=True):
    """The part of the page that depends on the window. `data`: figures under the pointer, for the script.

    `left_out`: the events without an entry, in words.
    """

    query: HistoryQuery
    moves: Moves
    ranges: tuple[Range, ...]
    charts: tuple[ChartView, ...]
    gaps: tuple[Gap, ...]
    entries: tuple[EventEntry, ...]
    left_out: str
    choices: tuple[Chart, ...]
    file_name: str
    known_since: float
    data: Mapping[str, Any]

    @property
    def here(self) -> WindowLink:
        """Return the shown time range with fixed bounds, for a permalink."""
        return WindowLink(self.query.window.start, min(self.query.window.end, self.data["now"]))

    @property
    def usual_href(self) -> str:
        return replace(self.query, series=()).href(WindowLink())

    @property
    def start_href(self) -> str:
        """Return a link to all that is known."""
        return self.query.href(WindowLink(self.known_since, self.data["now"]))

    @property
    def is_since_start(self) -> bool:
        window = self.query.window
        return not window.live and window.start <= self.known_since + 1 and window.end >= self.data["now"] - MAX_AGE

    def range_href(self, wanted: Range) -> str:
        return self.query.href(WindowLink(), wanted.name)


class RejectedQuery(Struct, frozen=True):
    """An invalid query: the reason and the valid ranges."""

    sentence: str
    ranges: tuple[Range, ...]


def build_view(past: HistoryInput, query: HistoryQuery, snapshot: Snapshot) -> HistoryView:
    """Build the view of one window."""
    window, now = query.window, snapshot.unix
    found = query_window(past, window, query.names, snapshot)
    telling = most_telling(found.annotations)
    entries = tuple(_entry(number, flag, query, past.incidents, snapshot) for number, flag in enumerate(telling, 1))
    return HistoryView(
        query=query,
        moves=build_moves(window, now, past.tiers),
        ranges=available_ranges(past.tiers),
        charts=tuple(_build_charts(found, entries, snapshot)),
        gaps=found.gaps,
        entries=entries,
        left_out=describe_dropped(found.annotations, telling),
        choices=build_charts([*past.history.current_names(), *query.names], snapshot, past.history.titles()),
        file_name=build_file_name(snapshot.host, window.start, window.end),
        known_since=max(now - max(tier.seconds for tier in past.tiers), past.history.start + past.to_wall),
        data=build_data(found, snapshot),
    )


def _entry(
    number: int, flag: Annotation, query: HistoryQuery, incidents: Iterable[Incident], snapshot: Snapshot
) -> EventEntry:
    now = snapshot.unix
    around = min(AROUND_SECONDS, query.window.seconds / 4)
    href = query.href(WindowLink(flag.unix - around, min(flag.unix + around, now)))
    about = next((one.id for one in incidents if _is_about(flag, one, now)), None)
    chart = find_pool(flag.target, snapshot) if flag.kind == "level" and flag.target else None
    return EventEntry(number, flag, href, f"incidents/{about}" if about else "", chart)


def _is_about(flag: Annotation, one: Incident, now: float) -> bool:
    """Check that an event names an incident, or is within one of its pool, give or take a late record."""
    if flag.kind == "incident":
        return f"({one.id})" in flag.text
    ended = now if one.ended is None else one.ended
    is_within = one.began - LATE_SECONDS <= flag.unix <= ended + LATE_SECONDS
    return flag.kind in ("level", "oom_kill") and flag.target == one.target and is_within


def _build_charts(found: WindowData, entries: Sequence[EventEntry], snapshot: Snapshot) -> Iterator[ChartView]:
    thresholds = {one.target: one.thresholds for one in snapshot.pressure if not isinstance(one.thresholds, Absent)}
    judged = {one.target for one in snapshot.pressure}
    marks = {one.whole.id: one.marks for one in build_maps(snapshot, thresholds) if one.whole.id in judged}
    full = {pool.id: find_seconds_to_full(pool.id, snapshot) for pool in found.stacked}
    edges = find_edges(found.window, found.until, full.values())
    events = [
        EventMark(one.number, one.annotation, one.incident or one.href, bool(one.incident), one.chart)
        for one in entries
        if one.annotation.kind != "incident"  # it is recorded when it is over: its level changes have flags
    ]
    is_now = found.window.live and found.window.grain_seconds <= MAX_NOW_SECONDS
    latest = _collect_latest(found.buckets, snapshot) if is_now else {}
    for chart in found.charts:
        # Thresholds of a chart of ratios are those of the first pool that has some.
        its = (
            marks.get(chart.id, ())
            if chart.id in full
            else next(iter(marks.values()), ())
            if chart.id == "pressure"
            else ()
        )
        most = max((one.maximum or 0.0 for curve in chart.curves for one in found.buckets[curve.name]), default=0.0)
        top = max(chart.top or 0.0, most if chart.top else 1.08 * most) or 1.0
        yield ChartView(
            chart,
            tuple(_figures(curve, found, latest.get(curve.name)) for curve in chart.curves),
            top,
            draw_chart(chart, found, top, edges, its, events, snapshot, full.get(chart.id)),
            levels_in_words(chart, found),
        )


def levels_in_words(chart: Chart, found: WindowData) -> str:
    """Format the time spent at each level: "Critical for 40 s, high for 3 min." Gaps do not count as OK.

    MIG instances above OK follow by name: "OK throughout; MIG 2 medium for 3 min."
    """
    if not found.judged.intersection(chart.targets):
        return "No level data in this range."
    spent = _sum_levels(found.spans_behind(chart), found)
    inside = [(short_label(one), found.spans[one.id]) for one in found.slices if one.within == chart.id]
    also = [f"; {name} {_sum_levels(runs, found)}" for name, runs in inside if runs]
    missing = sum(gap.end - gap.start for gap in found.gaps)
    recorded = max(0.0, found.until - found.window.start - missing)
    text = (spent[:1].upper() + spent[1:] if spent else "OK throughout") + "".join(also)
    return f"{text} ({duration(recorded)} recorded)." if found.gaps else f"{text}."


def _sum_levels(runs: Sequence[LevelSpan], found: WindowData) -> str:
    seconds = {level: sum(run.end - run.start for run in runs if run.level is level) for level in reversed(Level)}
    # A point has the worst level within it.
    most = "" if found.window.grain_seconds <= EXACT_SECONDS else "up to "
    return ", ".join(f"{level.word} for {most}{duration(length)}" for level, length in seconds.items() if length)


def _collect_latest(names: Collection[str], snapshot: Snapshot) -> Mapping[str, float]:
    """Return the figures of now by series, those of processes if there are some."""
    found = dict(collect_figures(snapshot))
    if any(name.startswith("process.") for name in names):
        for holder in list_holders(snapshot, "process"):
            sizes = build_figures(holder.of).items()
            found |= {series_name("process", holder.id, figure): size for figure, size in sizes}
    return found


def _figures(curve: Curve, found: WindowData, latest: float | None) -> SeriesSummary:
    """Return the statistics of a series. `latest`: its figure now: the last interval is older."""
    known = [one for one in found.buckets[curve.name] if one.average is not None]
    if not known:
        return SeriesSummary(curve, None, None, None, None, None)
    highest = max(known, key=lambda one: one.maximum or 0.0)
    return SeriesSummary(
        curve=curve,
        minimum=min(one.minimum for one in known if one.minimum is not None),
        mean=sum(one.average or 0.0 for one in known) / len(known),
        maximum=highest.maximum,
        maximum_unix=highest.boottime,
        last=latest
        if latest is not None
        else known[-1].average
        if found.until - known[-1].boottime < RECENT * found.steps[curve.name]
        else None,
    )
