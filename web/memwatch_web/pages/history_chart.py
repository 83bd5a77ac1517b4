"""A chart of the history as SVG: the composition of a pool as layers, and series of any unit as lines with bands.

All charts of a page have one axis of time. Heights are pixels, and lengths in time are in UNITS, as in the
landscape. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from memwatch.core.model import Pool
from memwatch.core.snapshot import Level, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.composition import LAYER_KINDS, build_layers, find_sources
from memwatch.reporting.render.landscape import Layer, Line, Past, Rectangle, Text, width_of
from memwatch.reporting.render.memory_map import Mark
from memwatch_monitor.history.tiers import Bucket
from memwatch_web.pages.charts import Annotation, Chart, Curve, LevelSpan
from memwatch_web.pages.history_data import TimeWindow, WindowData, list_columns
from memwatch_web.pages.landscape_page import FONT, UNITS, Word, draw_memory, list_times, thin_out

# Heights in pixels: of the plot, and above and below it.
PLOT, TOP, BOTTOM = 200.0, 34.0, 20.0
# Width of the figures on the left.
AXIS = 62.0
# The height of a strip above the plot shows its level without colour.
STRIPS = {Level.MEDIUM: 4.0, Level.HIGH: 7.0, Level.CRITICAL: 11.0}
LOUD = frozenset({"oom_kill", "driver"})
# Widths in pixels that words are placed for: of a chart at least this wide, and of one on a phone.
WIDE, NARROW = 520.0, 200.0
LONG_WORD, SHORT_WORD = 18, 8
# A band lower than this part of the plot is not visible.
MIN_BAND = 0.005
# Time ahead for a forecast: at most this part of the range, and this much of the time to the end.
MAX_AHEAD_RATIO, PAST_FULL = 0.14, 1.25
# The last interval of a live range is now if it is at most this long, in seconds.
MAX_NOW_SECONDS = 10.0
# Width of the shortest level, in UNITS.
MIN_WIDTH = 2.0


class Flag(Struct, frozen=True):
    """An event above a chart: its number in the list, and the page that it opens. `at`: 0 to 1, left to right.

    `text`: the words behind its number. `narrow`: its number has room on a phone. `leaves`: the page is that of its
    incident.
    """

    at: float
    number: int
    kind: str
    text: str
    href: str
    leaves: bool
    title: str
    anchor: str
    narrow: bool


class Trace(Struct, frozen=True):
    """A drawn series: lines of its mean, and bands from its minimum to its maximum. A gap ends a piece."""

    curve: Curve
    lines: tuple[Line, ...]
    bands: tuple[Line, ...]


class Piece(Struct, frozen=True):
    """A layer at the last time of a chart. `size_bytes` is None without data."""

    kind: str
    holder: str
    label: str
    size_bytes: float | None
    y: float
    height: float


class Tower(Struct, frozen=True):
    """The composition at the last time of a chart. `used_ratio` is None without data, `is_now` if that is now."""

    pieces: tuple[Piece, ...]
    used_ratio: float | None
    unix: float | None
    is_now: bool


class ChartPicture(Struct, frozen=True):
    """A drawn chart. `start` to `end`: the edges in Unix seconds; the data end at `now`.

    `layers` stand on each other, and `covers` lie over page cache, which is hatched. `gaps`: left edge and width,
    0 to 1. `poles`: lines of events by kind.
    """

    start: float
    now: float
    end: float
    axis: tuple[Text, ...]
    times: tuple[Word, ...]
    gaps: tuple[tuple[float, float], ...]
    wash: tuple[Line, ...]
    strips: tuple[Line, ...]
    layers: tuple[Line, ...]
    covers: tuple[Line, ...]
    traces: tuple[Trace, ...]
    thresholds: tuple[tuple[str, float], ...]
    forecast: Line | None
    full_at: float | None
    flags: tuple[Flag, ...]
    poles: Mapping[str, Sequence[float]]
    tower: Tower | None

    @property
    def edge(self) -> Curve | None:
        """Return the curve of used memory, the upper edge of the layers below page cache."""
        used = (one.curve for one in self.traces if self.tower and one.curve.name.endswith(".used_bytes"))
        return next((one for one in used if one.name.startswith("pool.")), None)


class EventMark(Struct, frozen=True):
    """An event of the window with its number and the page that it opens.

    `leaves`: that is the page of its incident. `chart`: the only one that shows it, None for all.
    """

    number: int
    annotation: Annotation
    href: str
    leaves: bool = False
    chart: str | None = None


class Edges(Struct, frozen=True):
    """Bounds of all charts of a page. `end` leaves room for forecasts."""

    start: float
    now: float
    end: float

    def at(self, unix: float) -> float:
        """Return the place of a time, 0 to 1 from left to right."""
        return min(1.0, max(0.0, (unix - self.start) / (self.end - self.start)))


def find_edges(window: TimeWindow, until: float, seconds_to_full: Iterable[float | None]) -> Edges:
    """Return the edges. A live range has room for the forecasts of its charts, as far as they reach."""
    length = window.end - window.start
    farthest = max((one or 0.0 for one in seconds_to_full), default=0.0)
    ahead = min(MAX_AHEAD_RATIO * length, farthest * PAST_FULL) if window.live else 0.0
    return Edges(window.start, until, window.end + ahead)


def draw_chart(
    chart: Chart,
    found: WindowData,
    top: float,
    edges: Edges,
    marks: Sequence[Mark],
    events: Sequence[EventMark],
    snapshot: Snapshot,
    seconds_to_full: float | None,
) -> ChartPicture:
    """Draw one chart. `top`: upper edge of the plot. `marks`: thresholds of its pool."""
    frame = Rectangle(0.0, TOP, UNITS, PLOT)
    pool = next((one for one in found.stacked if one.id == chart.id), None)
    runs = found.spans_behind(chart)
    past = None if pool is None else _build_past(pool, found, snapshot, edges)
    memory = None if past is None else draw_memory(past, top, frame)
    used = _last_use(past)
    is_ahead = found.window.live and seconds_to_full is not None and used is not None
    mine = [one for one in events if one.annotation.kind != "level" or one.chart == chart.id]
    return ChartPicture(
        start=edges.start,
        now=edges.now,
        end=edges.end,
        axis=tuple(_list_axis(top, chart.unit)),
        times=tuple(list_times(edges.start, edges.end, edges.at(edges.now), "now" if found.window.live else "")),
        gaps=tuple((edges.at(gap.start), edges.at(gap.end) - edges.at(gap.start)) for gap in found.gaps),
        wash=tuple(_draw_runs(runs, edges, None)),
        strips=tuple(_draw_runs(runs, edges, STRIPS)),
        layers=() if memory is None else memory.areas,
        covers=() if memory is None else memory.covers,
        traces=tuple(_trace(curve, found.buckets[curve.name], edges, top) for curve in chart.curves),
        thresholds=tuple(_place_thresholds(marks, pool, top)),
        forecast=_draw_forecast(edges, seconds_to_full or 0.0, (used or 0.0) / top) if is_ahead else None,
        full_at=edges.now + (seconds_to_full or 0.0) if is_ahead else None,
        flags=tuple(_place_flags(mine, edges)),
        poles=_find_poles(mine, edges),
        tower=None if pool is None or past is None else _build_tower(pool, past, found, snapshot, top),
    )


def _build_past(pool: Pool, found: WindowData, snapshot: Snapshot, edges: Edges) -> Past:
    sources = find_sources(pool, snapshot.shares)
    columns = list_columns(pool, found.buckets, snapshot.shares)
    layers = build_layers(pool, sources)
    times = tuple(one.boottime for one in found.buckets[sources.used])
    return Past(
        times,
        edges.start,
        edges.end,
        tuple(
            Layer(LAYER_KINDS[layer.holder], tuple(column[number] for column in columns))
            for number, layer in enumerate(layers)
        ),
    )


def _last_use(past: Past | None) -> float | None:
    if past is None or not past.times:
        return None
    known = (sizes for sizes in zip(*(reversed(one.sizes) for one in past.layers[:-1]), strict=True))
    return next((sum(size or 0.0 for size in sizes) for sizes in known if None not in sizes), None)


def _build_tower(pool: Pool, past: Past, found: WindowData, snapshot: Snapshot, top: float) -> Tower:
    words_of = build_layers(pool, find_sources(pool, snapshot.shares), snapshot.labels)
    below, used, pieces = 0.0, 0.0, []
    is_known = bool(past.times) and all(layer.sizes[-1] is not None for layer in past.layers)
    for layer, its in zip(past.layers, words_of, strict=True):
        if not any(layer.sizes):
            continue
        size = (layer.sizes[-1] or 0.0) if is_known else 0.0
        height = PLOT * min(1.0, size / top)
        y = TOP + PLOT - PLOT * min(1.0, below / top) - height
        pieces.append(Piece(layer.kind, its.holder, its.label, size if is_known else None, y, height))
        below += size
        used += size if its is not words_of[-1] else 0.0
    is_now = found.window.live and found.window.grain_seconds <= MAX_NOW_SECONDS
    unix = past.times[-1] if past.times else None
    return Tower(tuple(pieces), used / top if is_known else None, unix, is_now)


def _trace(curve: Curve, buckets: Sequence[Bucket], edges: Edges, top: float) -> Trace:
    """Draw a series. The band is left out where it is too low to be seen."""
    lines, bands = [], []
    for piece in _split_at_gaps(buckets):
        x = [edges.at(one.boottime) * UNITS for one in piece]
        low, mean, high = (
            [(at, _height(value, top)) for at, value in zip(x, values, strict=True)]
            for values in zip(*((one.minimum, one.average, one.maximum) for one in piece), strict=True)
        )
        lines.append(Line("curve", thin_out(mean) if len(mean) > 1 else (mean[0], (mean[0][0] + 1.0, mean[0][1]))))
        if any(least[1] - most[1] > MIN_BAND * PLOT for least, most in zip(low, high, strict=True)):
            bands.append(Line("band", (*thin_out(high), *reversed(thin_out(low)))))
    return Trace(curve, tuple(lines), tuple(bands))


def _height(value: float | None, top: float) -> float:
    return TOP + PLOT * (1 - min(1.0, max(0.0, value or 0.0) / top))


def _split_at_gaps(buckets: Sequence[Bucket]) -> Iterator[list[Bucket]]:
    piece: list[Bucket] = []
    for one in buckets:
        if one.average is not None:
            piece.append(one)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _draw_runs(runs: Iterable[LevelSpan], edges: Edges, strips: Mapping[Level, float] | None) -> Iterator[Line]:
    """Yield the times at a level: over the whole plot, or with `strips` above it."""
    for run in runs:
        left = edges.at(run.start) * UNITS
        right = max(edges.at(run.end) * UNITS, left + MIN_WIDTH)
        top, ground = (TOP, TOP + PLOT) if strips is None else (TOP - 1.0 - strips[run.level], TOP - 1.0)
        corners = ((left, top), (right, top), (right, ground), (left, ground))
        yield Line(f"level-{run.level.word}", tuple((round(x), y) for x, y in corners))


def _draw_forecast(edges: Edges, seconds: float, used_ratio: float) -> Line:
    """Draw used memory at the current rate, to the top or to the edge."""
    end = min(edges.now + seconds, edges.end)
    part = min(1.0, (end - edges.now) / max(seconds, 1e-9))
    points = ((edges.at(edges.now), used_ratio), (edges.at(end), used_ratio + (1.0 - used_ratio) * part))
    return Line("forecast", tuple((x * UNITS, TOP + PLOT * (1.0 - ratio)) for x, ratio in points))


def _place_thresholds(marks: Iterable[Mark], pool: Pool | None, top: float) -> Iterator[tuple[str, float]]:
    """Yield heights of thresholds: parts of a pool, or ratios."""
    for mark in marks:
        part = mark.position * pool.size_bytes / top if pool is not None else mark.threshold / top
        if part < 1.0:
            yield mark.level, TOP + PLOT * (1.0 - part)


def _find_poles(events: Iterable[EventMark], edges: Edges) -> dict[str, Sequence[float]]:
    """Return the places of events by kind: levels are areas, and have a short line above only."""
    found: dict[str, list[float]] = {}
    for one in events:
        kind = "level" if one.annotation.kind == "level" else _kind(one)
        found.setdefault(kind, []).append(edges.at(one.annotation.unix) * UNITS)
    return dict(found)


def _kind(one: EventMark) -> str:
    kind = one.annotation.kind
    return "critical" if _is_loud(one) else "mark" if kind == "mark" else "muted"


def _place_flags(events: Iterable[EventMark], edges: Edges) -> Iterator[Flag]:
    """Yield the events that have room for their number, with words where there is room for these.

    Kills and driver errors are placed first, with their words, then the numbers of all others.
    """
    wide: dict[int, tuple[float, float]] = {}
    narrow: dict[int, tuple[float, float]] = {}
    ranked = sorted(events, key=lambda one: (not _is_loud(one), one.annotation.kind != "mark"))
    for _, group in groupby(ranked, _is_loud):
        placed = [one for one in group if _take(wide, one, edges, "", WIDE)]
        for one in placed:
            is_narrow = _take(narrow, one, edges, "", NARROW)
            word = one.annotation.word
            choices = (f" {_cut(word, most)}" for most in (LONG_WORD, SHORT_WORD))
            text = next((words for words in choices if _take(wide, one, edges, words, WIDE)), "")
            at = edges.at(one.annotation.unix)
            is_right = at * WIDE + width_of(f"{one.number}{text}", FONT) > WIDE
            anchor, title = "end" if is_right else "start", one.annotation.text
            yield Flag(at, one.number, _kind(one), text, one.href, one.leaves, title, anchor, is_narrow)


def _is_loud(one: EventMark) -> bool:
    return one.annotation.kind in LOUD


def _take(taken: dict[int, tuple[float, float]], one: EventMark, edges: Edges, words: str, width: float) -> bool:
    """Take the room of a number and its words, unless another event has some of it."""
    length = width_of(f"{one.number}{words}", FONT)
    left = min(edges.at(one.annotation.unix) * width - 3.0, width - length)
    right = left + length + 8.0
    others = (place for number, place in taken.items() if number != one.number)
    if any(left < its_right and its_left < right for its_left, its_right in others):
        return False
    taken[one.number] = left, right
    return True


def _cut(word: str, most: int) -> str:
    return f"{word[: most - 1]}…" if len(word) > most else word


def _list_axis(top: float, unit: str) -> Iterator[Text]:
    for value in list_steps(top, unit):
        y = TOP + PLOT * (1 - value / top)
        yield Text(AXIS - 6.0, y + 4.0, plain=write_step(value, unit), anchor="end", kind="muted")


def list_steps(top: float, unit: str) -> list[float]:
    """Return round figures from zero to the top: binary steps for sizes, 0, 32, 64 GiB and not 0, 27.9, 55.9."""
    if unit == "ratio" and top == 1.0:
        return [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    step = 2.0 ** math.ceil(math.log2(top / 5)) if unit == "bytes" else _round_up(top / 5)
    found = [number * step for number in range(int(top / step + 1e-9) + 1)]
    return [*found, top] if top - found[-1] > 0.45 * step else found


def _round_up(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * least)


def write_step(value: float, unit: str) -> str:
    """Format a figure of an axis without a digit that says nothing: "32 GiB", "80%"."""
    if unit == "ratio":
        return f"{value * 100:.0f}%"
    return words.figure(value, unit).replace(".0 ", " ")
