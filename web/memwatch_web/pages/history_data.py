"""One window of the history: its time range, the query, and its data for the script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.model import Absent, Pool, Share, ShareKind
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import MIB
from memwatch.core.wire import Json
from memwatch.reporting.history.tier import TierSpec
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render.past import build_layers, find_sources, split
from memwatch.reporting.render.words import duration, timestamp
from memwatch_monitor.history.series import AllSeries
from memwatch_monitor.history.tiers import Bucket
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.loop import Monitor
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.charts import (
    Annotation,
    Chart,
    Curve,
    Gap,
    LevelSpan,
    build_annotations,
    build_charts,
    build_older_annotations,
    find_gaps,
    find_level_spans,
    find_restarts,
)

# Resolution of a chart of a thousand pixels: about three pixels for each point.
POINTS = 360
MIN_ROWS = 20
MAX_SECONDS = 60 * 86_400.0
# Bounds are rounded to whole seconds at each move.
SLACK_SECONDS = 60.0


class Range(Struct, frozen=True):
    """A selectable range. `step_seconds` is a multiple of the step of a history tier, so that queries are cheap.

    `poll_seconds`: refresh interval of a live page.
    """

    name: str
    label: str
    seconds: float
    step_seconds: float
    poll_seconds: float


RANGES = (
    Range("10m", "10 m", 600.0, 2.0, 5.0),
    Range("1h", "1 h", 3600.0, 10.0, 5.0),
    Range("6h", "6 h", 21_600.0, 60.0, 10.0),
    Range("24h", "24 h", 86_400.0, 300.0, 15.0),
    Range("7d", "7 d", 604_800.0, 1800.0, 60.0),
    Range("30d", "30 d", 2_592_000.0, 7200.0, 120.0),
)


class TimeWindow(Struct, frozen=True):
    """From `start` to `end` in Unix seconds, in `points` steps. `live`: it ends now and moves with the time.

    `grain_seconds`: the time that one point covers: a step, or a row of the tier that reaches back far enough.
    """

    range: Range
    start: float
    end: float
    points: int
    live: bool
    grain_seconds: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class WindowLink(Struct, frozen=True):
    """The target of a button. Without bounds it is the live range."""

    start: float | None = None
    end: float | None = None


class Moves(Struct, frozen=True):
    """The moves from a window, None if not possible."""

    earlier: WindowLink | None
    later: WindowLink | None
    closer: WindowLink | None
    wider: WindowLink | None


def available_ranges(tiers: Sequence[TierSpec]) -> tuple[Range, ...]:
    """Return the ranges that the tiers can fill, and always the shortest."""
    max_seconds = max(tier.seconds for tier in tiers)
    return tuple(one for one in RANGES if one is RANGES[0] or one.seconds <= max_seconds)


def choose_range(known_seconds: float, offered: tuple[Range, ...]) -> Range:
    """Return the range to begin with: an hour, or ten minutes while little more is known."""
    return offered[0] if known_seconds < 2 * offered[0].seconds or len(offered) < 2 else offered[1]


def find_range(name: str | None, offered: tuple[Range, ...], usual: Range | None = None) -> Range:
    wanted = name or (usual or offered[0]).name
    found = next((one for one in offered if one.name == wanted), None)
    if found is None:
        names = ", ".join(one.name for one in offered)
        raise ProblemError(422, f"range is {(name or '')[:80]!r}: use one of {names}.")
    return found


def build_window(
    wanted: Range, start: float | None, end: float | None, now: float, tiers: Sequence[TierSpec]
) -> TimeWindow:
    """Return the requested window. A missing bound follows from the range.

    A window too narrow for the resolution of its time is widened around its middle.
    """
    if start is None and end is None:
        end = math.ceil(now / wanted.step_seconds) * wanted.step_seconds
        points = round(wanted.seconds / wanted.step_seconds)
        grain = max(wanted.step_seconds, row_seconds(wanted.seconds, tiers))
        return TimeWindow(wanted, end - wanted.seconds, end, points, True, grain)
    if end is None:
        end = now if start is None else min(now, start + wanted.seconds)
    start = end - wanted.seconds if start is None else start
    _refuse(start, end, now)
    row = row_seconds(now - start, tiers)
    short = max(0.0, MIN_ROWS * row - (end - start))
    late = max(0.0, end + short / 2 - now) if short else 0.0
    start, end = float(math.floor(start - short / 2 - late)), float(math.ceil(end + short / 2 - late))
    return TimeWindow(wanted, start, end, POINTS, False, max(row, (end - start) / POINTS))


def row_seconds(age: float, tiers: Sequence[TierSpec]) -> float:
    """Return the step of the finest tier that reaches back to this age."""
    return next((tier.step_seconds for tier in tiers if age <= tier.seconds), tiers[-1].step_seconds)


def _refuse(start: float, end: float, now: float) -> None:
    if start < 0:
        raise ProblemError(422, "from is before 1970: use a time such as 2026-01-31T12:00:00Z.")
    if start > now:
        raise ProblemError(422, f"from is {timestamp(start)}, which is in the future: it is {timestamp(now)} now.")
    if start >= end:
        raise ProblemError(
            422, f"from is {timestamp(start)} and to is {timestamp(end)}: from must be earlier than to."
        )
    if end - start > MAX_SECONDS + SLACK_SECONDS:
        raise ProblemError(
            422,
            f"from is {timestamp(start)} and to is {timestamp(end)}, {duration(end - start)} later: "
            f"at most {duration(MAX_SECONDS)} are shown at once.",
        )


def build_moves(window: TimeWindow, now: float, tiers: Sequence[TierSpec]) -> Moves:
    """Return the moves: half a window to either side, half the length, twice the length."""
    start, end, length = window.start, min(window.end, now), window.seconds
    middle, row = (start + end) / 2, row_seconds(now - start, tiers)
    max_seconds = max(tier.seconds for tier in tiers)
    closer = WindowLink(middle - length / 4, middle + length / 4) if length >= 2 * MIN_ROWS * row else None
    wider = min(2 * length, max_seconds)
    return Moves(
        earlier=WindowLink(start - length / 2, start + length / 2) if start > now - max_seconds else None,
        later=None if window.live else _until_now(start + length / 2, length, window.range, now),
        closer=closer,
        wider=_until_now(middle - wider / 2, wider, window.range, now) if wider > length * 1.01 else None,
    )


def _until_now(start: float, length: float, usual: Range, now: float) -> WindowLink:
    """Return a range of this length that ends now at the latest. It is live if it is the default length."""
    if start + length < now:
        return WindowLink(start, start + length)
    if abs(length - usual.seconds) < usual.step_seconds:
        return WindowLink()
    return WindowLink(now - length, now)


# All that are kept, with the default budget of marks.
MAX_EVENTS = 1500
# A series that exists whenever memwatchd runs and never decreases during a run.
REFERENCE_SERIES = "self.cpu_seconds"


class HistoryInput(Struct, frozen=True):
    """The stored history. `to_wall`: Unix time minus boot time, in seconds. `events`: newest first.

    `incidents`: those that are kept.
    """

    history: AllSeries
    to_wall: float
    tiers: Sequence[TierSpec]
    events: Sequence[Event]
    incidents: Sequence[Incident] = ()

    def buckets(self, name: str, window: TimeWindow) -> list[Bucket]:
        """Return a series of the window with Unix times. Empty if the series does not exist yet."""
        start, end = window.start - self.to_wall, window.end - self.to_wall
        try:
            found = self.history.query(name, start, end, window.points)
        except KeyError:
            return []
        return [replace(one, boottime=round(one.boottime + self.to_wall, 3)) for one in found]


def build_input(monitor: Monitor) -> HistoryInput:
    """Return the stored history of a daemon."""
    return HistoryInput(
        monitor.features.get(HistoryRecorder).series,
        monitor.to_wall(0.0),
        monitor.rules.tier_specs,
        monitor.events.latest(MAX_EVENTS),
        monitor.features.get(IncidentObserver).log.heads(),
    )


class WindowData(Struct, frozen=True):
    """Data of one window, which ends now at the latest.

    `buckets`: by series. `spans`: levels by target. `judged`: targets with a known level. `annotations`: oldest
    first. `steps`: seconds between the points of a series. `stacked`: pools whose composition is drawn; `buckets`
    has its series too. `slices`: judged MIG instances in them.
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
    slices: tuple[Share, ...] = ()

    def spans_behind(self, chart: Chart) -> list[LevelSpan]:
        return [run for target in chart.targets for run in self.spans[target]]


def query_window(past: HistoryInput, window: TimeWindow, names: Sequence[str], snapshot: Snapshot) -> WindowData:
    """Query one window. The buckets are those of the API for the same query."""
    charts = build_charts(names, snapshot, past.history.titles())
    targets = [target for chart in charts for target in chart.targets]
    stacked = choose_stacked(charts, names, snapshot)
    sources = [name for pool in stacked for name in find_sources(pool, snapshot.shares).names]
    slices = tuple(_list_slices(stacked, snapshot))
    targets += [one.id for one in slices]
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
        slices=slices,
    )


def _list_slices(pools: Sequence[Pool], snapshot: Snapshot) -> Iterator[Share]:
    """Yield the MIG instances of pools that have a level of their own."""
    inside, judged = {pool.id for pool in pools}, {one.target for one in snapshot.pressure}
    for share in snapshot.shares:
        if share.kind is ShareKind.MIG_INSTANCE and share.within in inside and share.id in judged:
            yield share


def choose_stacked(charts: Sequence[Chart], names: Sequence[str], snapshot: Snapshot) -> tuple[Pool, ...]:
    """Return the pools whose composition is drawn: those whose use is shown."""
    shown = {chart.id for chart in charts}
    return tuple(pool for pool in snapshot.pools if pool.id in shown and f"pool.{pool.id}.used_bytes" in names)


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


def build_data(found: WindowData, snapshot: Snapshot) -> Json:
    """Return the figures under the pointer, with fewer digits than the API."""
    window = found.window
    charts = [_chart_data(chart, found, snapshot) for chart in found.charts]
    _send_times_once([curve for chart in charts for curve in chart["curves"]])
    return {
        "start": window.start,
        "end": window.end,
        "now": snapshot.unix,
        "live": window.live,
        "grain_seconds": window.grain_seconds,
        "poll_seconds": window.range.poll_seconds,
        "charts": charts,
    }


def _chart_data(chart: Chart, found: WindowData, snapshot: Snapshot) -> Json:
    pool = next((one for one in found.stacked if one.id == chart.id), None)
    return {
        "id": chart.id,
        "unit": chart.unit,
        "stack": build_stack(pool, found, snapshot) if pool else None,
        "curves": [_curve_data(curve, found.buckets[curve.name], chart.unit) for curve in chart.curves],
    }


def find_seconds_to_full(target: str, snapshot: Snapshot) -> float | None:
    stated = [one.seconds_to_full for one in snapshot.pressure if one.target == target]
    return next((one for one in stated if not isinstance(one, Absent)), None)


def build_stack(pool: Pool, found: WindowData, snapshot: Snapshot) -> Json:
    """Return the composition of a pool in MiB: layers from the bottom, at the times of the curve of use.

    A layer that is empty throughout has no piece in the picture, and is left out here too.
    """
    columns = list_columns(pool, found.buckets, snapshot.shares)
    layers = build_layers(pool, find_sources(pool, snapshot.shares), snapshot.labels)
    return {
        "layers": [
            {
                "holder": layer.holder,
                "values": [
                    None if column[number] is None else round((column[number] or 0) / MIB) for column in columns
                ],
            }
            for number, layer in enumerate(layers)
            if any(column[number] for column in columns)
        ],
    }


def list_columns(
    pool: Pool, buckets: Mapping[str, Sequence[Bucket]], shares: Sequence[Share]
) -> list[tuple[float | None, ...]]:
    """Return the sizes of the layers of a pool at the times of its use. `buckets` are by series."""
    sources = find_sources(pool, shares)
    available, free, rest, *devices = (
        by_time(buckets.get(name, ()))
        for name in (sources.available, sources.free, sources.unattributed, *sources.devices)
    )
    return [
        split(
            pool,
            one.average,
            available.get(one.boottime),
            free.get(one.boottime),
            rest.get(one.boottime),
            [held.get(one.boottime) for held in devices],
        )
        for one in buckets.get(sources.used, ())
    ]


def by_time(buckets: Sequence[Bucket]) -> dict[float, float | None]:
    return {one.boottime: one.average for one in buckets}


def _round(value: float, places: int) -> float:
    return round(value, places) if places > 0 else round(round(value), places)


def _decimal_places(value: float, unit: str) -> int:
    """Return four, or for bytes that of the fifth significant digit: negative from 100,000 on."""
    return min(0, 4 - math.floor(math.log10(max(abs(value), 1.0)))) if unit == "bytes" else 4


def _send_times_once(curves: Sequence[Json]) -> None:
    """Leave out the times of all curves that have those of the first one: 100 kB for eight GPUs."""
    for one in curves[1:]:
        if one["unix"] == curves[0]["unix"]:
            one["unix"] = None


def _curve_data(curve: Curve, buckets: Sequence[Bucket], unit: str) -> Json:
    short = [_shorten(one, unit) for one in buckets]
    return {
        "name": curve.name,
        "unix": [round(one.boottime, 1) for one in buckets],
        "avg": [mean for mean, _, _ in short],
        "below": [below for _, below, _ in short],
        "above": [above for _, _, above in short],
    }


def _shorten(bucket: Bucket, unit: str) -> tuple[float | None, float | None, float | None]:
    """Return the mean, rounded to five significant digits of bytes or four decimals: labels have four digits.

    With it come the distances of the minimum and the maximum, in no finer steps. They stay the same where memory
    changes steadily and are 0 where it hardly changes. The page of eight GPUs transfers 19 kB less.
    """
    mean, least, most = bucket.average, bucket.minimum, bucket.maximum
    if mean is None or least is None or most is None:
        return None, None, None
    places = _decimal_places(mean, unit)
    return _round(mean, places), _round(abs(mean - least), places), _round(abs(most - mean), places)
