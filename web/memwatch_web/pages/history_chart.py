"""A chart of the history as SVG: the composition of a pool as layers, and series of any unit as lines with bands.

All charts of a page have one axis of time. Heights are pixels, and lengths in time are in UNITS, as in the
landscape. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Pool
from memwatch.core.snapshot import Level, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.drawing import (
    TIME_FORMS,
    Flag,
    Line,
    Rectangle,
    Text,
    TimeAxis,
    draw_forecast,
    list_steps,
    measure_times,
    shorten,
    spread,
    stack_sizes,
    width_of,
)
from memwatch.reporting.render.memory_map import Mark
from memwatch.reporting.render.past import Past, build_layers, draw_span, find_sources, list_past_layers, split_now
from memwatch_monitor.history.tiers import Bucket
from memwatch_web.pages.charts import Annotation, Chart, Curve, LevelSpan
from memwatch_web.pages.history_data import TimeWindow, WindowData, list_columns
from memwatch_web.pages.landscape_page import FONT
from memwatch_web.pages.past_picture import UNITS, WIDE_PAST, Word, draw_memory, thin_out, write_times

# Heights in pixels: of the plot, and above and below it.
PLOT, TOP, BOTTOM = 200.0, 34.0, 20.0
# Width of the figures on the left.
AXIS = 62.0
# The height of a strip above the plot shows its level without colour.
STRIPS = {Level.MEDIUM: 4.0, Level.HIGH: 7.0, Level.CRITICAL: 11.0}
LOUD = frozenset({"oom_kill", "driver"})
# Widths in pixels that words are placed for: of a plot on a phone of 320 pixels, in a box of more than 640 pixels,
# and in one of more than 1,100, as in history.css. What has room there has room in a wider one.
WIDTHS: Mapping[str, float] = {"narrow": 146.0, "wide": 520.0, "roomy": 980.0}
NARROW = WIDTHS["narrow"]
# Space from one time to the next on a phone, and from the word of one level to the next.
NARROW_GAP, LEVEL_STEP = 8.0, 13.0
LONG_WORD, SHORT_WORD = 120.0, 56.0
# The number of an event begins as much before its line.
LEAD = -3.0
# A band lower than this part of the plot is not visible.
MIN_BAND = 0.005
# Time ahead for a forecast: at most this part of the range, and this much of the time to the end.
MAX_AHEAD_RATIO, PAST_FULL = 0.14, 1.25
# The last interval of a live range is now if it is at most this long, in seconds.
MAX_NOW_SECONDS = 10.0
# Width of the shortest level, in UNITS.
MIN_WIDTH = 2.0


class EventFlag(Struct, frozen=True):
    """An event above a chart: its number in the list, and the page that it opens. `at`: 0 to 1, left to right.

    `text`: the words behind its number. `rooms` and `text_rooms`: the WIDTHS at which number and words have room.
    `anchor`: its words begin or end at its line. `leaves`: the page is that of its incident.
    """

    at: float
    number: int
    kind: str
    text: str
    href: str
    leaves: bool
    title: str
    anchor: str
    rooms: frozenset[str]
    text_rooms: frozenset[str]


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
    """The composition at the last time of a chart. `used_ratio` is None without data."""

    pieces: tuple[Piece, ...]
    used_ratio: float | None
    unix: float | None


class ChartPicture(Struct, frozen=True):
    """A drawn chart. `start` to `end`: the edges in Unix seconds; the data end at `now`.

    `times`: each with the WIDTHS at which it is written. `thresholds`: level, height of its line and of its word.

    `layers` stand on each other, and `covers` lie over page cache, which is hatched. `gaps`: left edge and width,
    0 to 1. `poles`: lines of events by kind.
    """

    start: float
    now: float
    end: float
    axis: tuple[Text, ...]
    times: tuple[tuple[Word, frozenset[str]], ...]
    gaps: tuple[tuple[float, float], ...]
    wash: tuple[Line, ...]
    strips: tuple[Line, ...]
    layers: tuple[Line, ...]
    covers: tuple[Line, ...]
    traces: tuple[Trace, ...]
    thresholds: tuple[tuple[str, float, float], ...]
    forecast: Line | None
    full_at: float | None
    flags: tuple[EventFlag, ...]
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


class Edges(TimeAxis, frozen=True):
    """Bounds of all charts of a page. `end` leaves room for forecasts; the data end at `now`."""

    now: float


def find_edges(window: TimeWindow, until: float, seconds_to_full: Iterable[float | None]) -> Edges:
    """Return the edges. A live range has room for the forecasts of its charts, as far as they reach."""
    length = window.end - window.start
    farthest = max((one or 0.0 for one in seconds_to_full), default=0.0)
    ahead = min(MAX_AHEAD_RATIO * length, farthest * PAST_FULL) if window.live else 0.0
    return Edges(window.start, window.end + ahead, until)


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
    full_at = edges.now + (seconds_to_full or 0.0)
    is_ahead = found.window.live and seconds_to_full is not None and used is not None
    mine = [one for one in events if one.annotation.kind != "level" or one.chart == chart.id]
    return ChartPicture(
        start=edges.start,
        now=edges.now,
        end=edges.end,
        axis=tuple(_list_axis(top, chart.unit)),
        times=tuple(place_times(edges, found.window.live)),
        gaps=tuple((edges.at(gap.start), edges.at(gap.end) - edges.at(gap.start)) for gap in found.gaps),
        wash=tuple(_draw_runs(runs, edges, None)),
        strips=tuple(_draw_runs(runs, edges, STRIPS)),
        layers=() if memory is None else memory.areas,
        covers=() if memory is None else memory.covers,
        traces=tuple(_trace(curve, found.buckets[curve.name], edges, top) for curve in chart.curves),
        thresholds=tuple(_place_thresholds(marks, pool, top)),
        forecast=draw_forecast(edges, edges.now, full_at, (used or 0.0) / top, frame) if is_ahead else None,
        full_at=full_at if is_ahead else None,
        flags=place_flags(mine, edges),
        poles=_find_poles(mine, edges),
        tower=None if pool is None or past is None else _build_tower(pool, past, found, snapshot, top),
    )


def _build_past(pool: Pool, found: WindowData, snapshot: Snapshot, edges: Edges) -> Past:
    columns = list_columns(pool, found.buckets, snapshot.shares)
    times = tuple(one.boottime for one in found.buckets[find_sources(pool, snapshot.shares).used])
    return Past(times, edges.start, edges.end, list_past_layers(pool, snapshot.shares, columns))


def _last_use(past: Past | None) -> float | None:
    if past is None or not past.times:
        return None
    known = (sizes for sizes in zip(*(reversed(one.sizes) for one in past.layers[:-1]), strict=True))
    return next((sum(size or 0.0 for size in sizes) for sizes in known if None not in sizes), None)


def _build_tower(pool: Pool, past: Past, found: WindowData, snapshot: Snapshot, top: float) -> Tower:
    words_of = build_layers(pool, find_sources(pool, snapshot.shares), snapshot.labels)
    is_now = found.window.live and found.window.grain_seconds <= MAX_NOW_SECONDS
    last = tuple(layer.sizes[-1] if past.times else None for layer in past.layers)
    latest = split_now(pool, snapshot) if is_now else last
    is_known = bool(past.times) and None not in latest
    sizes = [(size or 0.0) if is_known else 0.0 for size in latest]
    pieces = [
        Piece(layer.kind, its.holder, its.label, size if is_known else None, place.y, place.height)
        for layer, its, size, place in zip(
            past.layers, words_of, sizes, stack_sizes(sizes, top, Rectangle(0.0, TOP, 0.0, PLOT)), strict=True
        )
        if any(layer.sizes)
    ]
    unix = past.times[-1] if past.times else None
    return Tower(tuple(pieces), sum(sizes[:-1]) / top if is_known else None, snapshot.unix if is_now else unix)


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
        high = PLOT if strips is None else strips[run.level]
        frame = Rectangle(0.0, TOP if strips is None else TOP - 1.0 - high, UNITS, high)
        yield draw_span(f"level-{run.level.word}", round(left), round(right), frame)


def _place_thresholds(marks: Iterable[Mark], pool: Pool | None, top: float) -> Iterator[tuple[str, float, float]]:
    """Yield thresholds, which are parts of a pool or ratios, from the top down. No word of one is on another."""
    parts = ((m.level, m.position * pool.size_bytes if pool is not None else m.threshold) for m in marks)
    shown = [(level, TOP + PLOT * (1.0 - part / top)) for level, part in parts if part < top]
    shown.sort(key=lambda one: one[1])
    heights = spread([y for _, y in shown], LEVEL_STEP, TOP, TOP + PLOT)
    for (level, y), word_y in zip(shown, heights, strict=True):
        yield level, y, word_y


def place_times(edges: Edges, live: bool) -> Iterator[tuple[Word, frozenset[str]]]:
    """Yield the times with the WIDTHS at which each is written. That of the end has room at all of them.

    The end of a live chart has its time, not the word "now": the state above it is newer until the next refresh.
    """
    found: dict[Word, set[str]] = {}
    end_word = TIME_FORMS["seconds"] if live else ""
    for name, width in WIDTHS.items():
        written = write_times(edges, max(width, WIDE_PAST), edges.now, end_word, FONT, NARROW)
        for word in _fit_times(list(written)) if name == "narrow" else written:
            shown = replace(word, text="", unix=edges.now) if word.text else word
            found.setdefault(shown, set()).add(name)
    return ((word, frozenset(names)) for word, names in found.items())


def _fit_times(written: Sequence[Word]) -> Iterator[Word]:
    """Yield those of the times that have room on a phone: the word of the end first, then the latest."""
    widths, limit = measure_times(FONT), NARROW
    for word in reversed(written):
        width = widths[word.kind] if word.unix is not None else width_of(word.text, FONT, strong=True)
        right = word.at * NARROW + (width / 2 if word.anchor == "middle" else 0.0)
        if right <= limit and right - width >= 0:
            limit = right - width - NARROW_GAP
            yield word


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


def place_flags(events: Sequence[EventMark], edges: Edges) -> tuple[EventFlag, ...]:
    """Return the events that have room for their number, with words where there is room for these.

    At each width the numbers of all come first, the most severe before others, then their words in this order. A
    number stays on its side of its line.
    """
    ranked = sorted(events, key=_rank)
    anchors: dict[int, str] = {}
    texts: dict[int, str] = {}
    rooms: dict[int, set[str]] = {}
    text_rooms: dict[int, set[str]] = {}
    for name, width in WIDTHS.items():
        taken: dict[int, Flag] = {}
        for one in sorted(ranked, key=lambda one: one.number not in anchors):
            if _take(taken, one, edges, "", width, anchors):
                rooms.setdefault(one.number, set()).add(name)
        for one in ranked if name != "narrow" else ():
            for words_of_it in _choose_words(one, texts) if one.number in taken else ():
                if _take(taken, one, edges, words_of_it, width, anchors):
                    texts[one.number] = words_of_it
                    text_rooms.setdefault(one.number, set()).add(name)
                    break
    return tuple(
        EventFlag(
            edges.at(one.annotation.unix),
            one.number,
            _kind(one),
            texts.get(one.number, ""),
            one.href,
            one.leaves,
            one.annotation.text,
            anchors[one.number],
            frozenset(rooms[one.number]),
            frozenset(text_rooms.get(one.number, ())),
        )
        for one in events
        if one.number in rooms
    )


def _choose_words(one: EventMark, texts: Mapping[int, str]) -> Sequence[str]:
    """Return the words to try behind a number, those of a narrower chart if it has some.

    A level of a MIG instance in the chart of its GPU has its name: "MIG 2 medium".
    """
    found, word = texts.get(one.number), one.annotation.word
    where = one.annotation.text.partition(": ")[0] if one.annotation.kind == "level" else ""
    if " · " in where:
        word = f"{where.rpartition(' · ')[2]} {word}"
    return [found] if found else [f" {shorten(word, most, FONT)}" for most in (LONG_WORD, SHORT_WORD)]


def _rank(one: EventMark) -> int:
    """Return the place in the order of severity: kills and driver errors, critical levels, marks, high levels."""
    word = one.annotation.word if one.annotation.kind == "level" else one.annotation.kind
    order = (Level.CRITICAL.word, "mark", Level.HIGH.word)
    return 0 if _is_loud(one) else 1 + order.index(word) if word in order else 1 + len(order)


def _is_loud(one: EventMark) -> bool:
    return one.annotation.kind in LOUD


def _take(
    taken: dict[int, Flag], one: EventMark, edges: Edges, words: str, width: float, anchors: dict[int, str]
) -> bool:
    """Take the room of a number and its words, unless another event has some of it.

    They begin at its line, or end there without room on that side, on the side that `anchors` has of it.
    """
    others = [flag for number, flag in taken.items() if number != one.number]
    x, length = edges.at(one.annotation.unix) * width, width_of(f"{one.number}{words}", FONT)
    starts = {"start": x + LEAD, "end": x - LEAD - length}
    if one.number in anchors:
        starts = {anchors[one.number]: starts[anchors[one.number]]}
    for anchor, left in starts.items():
        flag = Flag(x, left, left + length, anchor=anchor)
        if left >= LEAD and flag.right <= width - LEAD and not any(map(flag.disturbs, others)):
            taken[one.number] = flag
            anchors[one.number] = anchor
            return True
    return False


def _list_axis(top: float, unit: str) -> Iterator[Text]:
    for value in list_steps(top, unit):
        y = TOP + PLOT * (1 - value / top)
        yield Text(AXIS - 6.0, y + 4.0, plain=write_step(value, unit), anchor="end", kind="muted")


def write_step(value: float, unit: str) -> str:
    """Format a figure of an axis without a digit that says nothing: "32 GiB", "80%"."""
    if unit == "ratio":
        return f"{value * 100:.0f}%"
    return words.figure(value, unit).replace(".0 ", " ")
