"""Pages 3 and 4: charts of the pools over time, and recent events. The overview shows the first of both."""

from __future__ import annotations

import time

from memwatch.cli.terminal.figures import Trend, short, spark
from memwatch.cli.terminal.frame import Body, Frame, View, header_of, notice_lines, scroll
from memwatch.cli.terminal.moment import LEVELS, STYLES, labels_of
from memwatch.cli.terminal.past import build_past
from memwatch.cli.terminal.stacks import Ink, Place, look_of
from memwatch.cli.terminal.style import Line, Span, clip, line_cells, pad, wrapped
from memwatch.cli.terminal.towers import AXIS, Area, Canvas, draw_axis, draw_past, write_times
from memwatch.core.events import Event
from memwatch.core.model import Pool, PoolKind, whole_of
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.past import Past

# A chart's title, its strip of levels, and its times. Rows of its bytes at most.
CHART_ROWS, MAX_CHART = 3, 30
BIG = frozenset({PoolKind.SYSTEM_RAM, PoolKind.HBM, PoolKind.VRAM})
RANGE_WORDS = {600: "10 min", 3600: "1 h", 21_600: "6 h", 86_400: "24 h", 604_800: "7 d"}


def history_page(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view)], [])
    if not view.moment.has_history:
        body.lines.append((Span(" A longer past needs a daemon: start memwatchd.", "muted"),))
    body.lines.append(_title(view))
    places = _places(view)
    room = view.height - len(body.lines) - 3
    big = [(name, one) for name, one in places if isinstance(one, Pool) and one.kind in BIG][:2]
    rows = max(3, min(MAX_CHART, (room - (len(places) - len(big)) - 2) // max(1, len(big)) - CHART_ROWS))
    lines: list[Line] = []
    for name, place in big:
        lines += _chart_of(name, place, view, rows)
    drawn = {name for name, _ in big}
    lines += [_row(name, place, view) for name, place in places if name not in drawn]
    lines += _others(view)
    return scroll(view, body, lines)


def _title(view: View) -> Line:
    word = RANGE_WORDS.get(view.state.range_seconds, "")
    title = f" Last {word}"
    legend = "   highest value of each column; a gap is time without data"
    if len(title) + len(legend) > view.width:
        legend = legend.partition(" of each")[0]
    return Span(title, "bold"), Span(legend, "muted")


def _places(view: View) -> list[tuple[str, Place]]:
    snapshot = view.moment.snapshot
    pools = [(f"pool.{one.id}.used_bytes", one) for one in snapshot.pools]
    shares = [(f"share.{one.id}.used_bytes", one) for one in snapshot.shares]
    return [*pools, *shares]


def _span(view: View) -> tuple[float, float]:
    start, end = view.moment.chart_span
    if end > start:
        return start, end
    return view.moment.unix - view.state.range_seconds, view.moment.unix


def _trend(name: str, view: View) -> Trend:
    return view.moment.charts.get(name) or view.moment.trends.get(name) or Trend()


def _chart_of(name: str, pool: Pool, view: View, rows: int) -> list[Line]:
    """Return the layers of a pool over time, as in the landscape: levels above, times below."""
    span = _span(view)
    canvas = Canvas(view.width, rows + CHART_ROWS - 1)
    area = Area(AXIS, view.width - 1, canvas.rows - 1, float(rows))
    trends = {**view.moment.trends, **view.moment.charts}
    values, lowest = _trend(name, view).columns(*span, area.right - area.left), _trend(name, view).lowest(*span)
    past = build_past(pool, view.moment.snapshot, trends, span, view.moment.events, None, view.width)
    if past is not None and pool.size_bytes:
        draw_past(canvas, past, pool.size_bytes, Ink(view.has_colour, view.is_ascii), area)
        draw_axis(canvas, pool.size_bytes, 0, area.ground, area.height)
        at = _cursor(view, *span, area.right - area.left)
        for row in range(rows if at >= 0 else 0):
            canvas.put(area.left + at, row + 1, view.spell("│"), "bold")
    else:
        write_times(canvas, *span, area)
    title = Span(f" {labels_of(view.moment.snapshot)[pool.id]}", "bold")
    key = _key(past, view, canvas.width - 40) if past is not None else ()
    return [(title, *_statistics(values, lowest), *key), *canvas.lines()]


def _key(past: Past, view: View, room: int) -> Line:
    """Return the key of the colours, as far as there is room."""
    ink, found = Ink(view.has_colour, view.is_ascii), list[Span]()
    for layer in past.layers:
        look = look_of(layer.kind)
        word = f" {look.word}"
        if any(layer.sizes) and line_cells(found) + len(word) + 4 <= room:
            found += [
                Span(f"  {'■' if look.char == '█' and ink.has_parts else ink.char_of(look)}", look.colour),
                Span(word),
            ]
    return (Span(" "), *found) if found else ()


def _cursor(view: View, start: float, end: float, columns: int) -> int:
    """Return the column of the moment that is shown, -1 for the newest."""
    if view.state.paused_at is None or end <= start:
        return -1
    return min(columns - 1, int((view.moment.unix - start) / (end - start) * columns))


def _statistics(values: list[float | None], lowest: float | None) -> Line:
    known = [value for value in values if value is not None]
    if lowest is None or not known:
        return (Span("   no data in this time range", "muted"),)
    return (Span(f"   min {short(round(lowest))}  max {short(round(max(known)))}", "muted"),)


def _row(name: str, place: Place, view: View) -> Line:
    """Return a place as one row: its name, its sparkline and its greatest use."""
    start, end = _span(view)
    label = pad(clip(labels_of(view.moment.snapshot)[place.id], 20), 20)
    width = max(8, view.width - 34)
    values = _trend(name, view).columns(start, end, width)
    whole = whole_of(place) or max((one for one in values if one), default=0)
    known = [one for one in values if one is not None]
    return (
        Span(f" {label} "),
        Span(spark(values, whole), "gpu"),
        Span(f" max {short(round(max(known)))}" if known else " no data", "muted"),
    )


def _others(view: View) -> list[Line]:
    """Return the rows of stalls and swap."""
    start, end = _span(view)
    width = max(8, view.width - 34)
    found: list[Line] = []
    for name, label, words in (
        ("psi.some.ratio_10s", "PSI stall (some)", wording.ratio),
        ("swap.used_bytes", "swap used", lambda value: short(round(value))),
    ):
        values = _trend(name, view).columns(start, end, width)
        known = [one for one in values if one is not None]
        if known:
            top = max(0.01 if "psi" in name else 1, *known)
            found.append(
                (
                    Span(f" {label:<20} "),
                    Span(spark(values, top), "shared"),
                    Span(f" max {words(max(known))}", "muted"),
                )
            )
    return found


def events_page(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view), ()], [])
    lines = [line for one in _shown(view) for line in _wrapped(one, view.width, view.now)]
    return scroll(view, body, lines or [(Span(f" {_empty(view)}", "muted"),)])


def _empty(view: View) -> str:
    return "No events yet." if view.moment.has_history else "Events need a daemon: start memwatchd."


def event_lines(view: View, width: int) -> list[Line]:
    """Return the events up to the moment that is shown, newest first."""
    return [_wrapped(one, width, view.now, is_cut=True)[0] for one in _shown(view)]


def _shown(view: View) -> list[Event]:
    return [one for one in view.moment.events if one.unix <= view.moment.unix + 1]


def _wrapped(event: Event, width: int, now: float, is_cut: bool = False) -> list[Line]:
    """Return the lines of an event. `is_cut`: one line, with an ellipsis."""
    at = time.localtime(event.unix)
    today = time.localtime(now)[:3] == at[:3]
    clock = time.strftime("%H:%M:%S" if today else "%m-%d %H:%M:%S", at)
    room = max(10, width - len(clock) - 13)
    texts = [clip(event.text, room)] if is_cut else wrapped(event.text, room)
    style = style_of(event)
    first = Span(f" {clock}  ", "muted"), Span(f"{event.kind[:9]:<9} ", "muted"), Span(texts[0], style)
    return [first, *((Span(" " * (len(clock) + 13)), Span(text, style)) for text in texts[1:])]


def style_of(event: Event) -> str:
    """Return the style of an event: that of the level it reached, or of an OOM kill."""
    if event.kind == "oom_kill":
        return "bold critical"
    text = event.text
    if event.kind == "level" and "→" in text:
        word = text.partition("→")[2].split()[0] if text.partition("→")[2].split() else ""
        return STYLES.get(word.lower(), "ok" if word == "OK" else "")
    if event.kind == "alert" and "resolved" not in text:
        return next((STYLES[level] for level in reversed(LEVELS[1:]) if level in text), "")
    return ""
