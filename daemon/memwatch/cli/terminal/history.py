"""Pages 3 and 4: charts of the pools over time, and recent events. The overview shows the first of both."""

from __future__ import annotations

import time

from memwatch.cli.terminal.figures import Trend, chart, short, spark
from memwatch.cli.terminal.frame import Body, Frame, View, finish, header_of, notice_lines
from memwatch.cli.terminal.memory_map import Place, marks_of, merge, style_at, whole_of
from memwatch.cli.terminal.moment import LEVELS, STYLES, labels_of
from memwatch.cli.terminal.style import Line, Span, clip, pad, wrapped
from memwatch.core.events import Event
from memwatch.core.model import Pool, PoolKind
from memwatch.reporting.render import words as wording

LABEL = 9
BIG = frozenset({PoolKind.SYSTEM_RAM, PoolKind.HBM, PoolKind.VRAM})
RANGE_WORDS = {600: "10 min", 3600: "1 h", 21_600: "6 h", 86_400: "24 h", 604_800: "7 d"}


def history_page(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view)], [])
    if not view.moment.has_history:
        body.lines.append((Span(" A longer past needs a daemon: start memwatchd.", "muted"),))
    body.lines.append(_title(view))
    places = _places(view)
    room = view.height - len(body.lines) - 3
    big = [one for one in places if one[1].kind in BIG][:2]
    rows = max(3, min(12, (room - (len(places) - len(big)) - 2) // max(1, len(big)) - 2))
    lines: list[Line] = []
    for name, place in big:
        lines += _chart_of(name, place, view, view.width, rows)
    lines += [_row(name, place, view) for name, place in places if (name, place) not in big]
    lines += _others(view)
    shown = max(1, view.height - 2 - len(body.lines))
    offset = max(0, min(view.state.offset, len(lines) - shown))
    body.rows, body.total = shown, len(lines)
    body.lines += lines[offset : offset + shown]
    body.lines += [()] * (view.height - 2 - len(body.lines))
    body.lines.append(_axis(view, view.width))
    return finish(view, body)


def _title(view: View) -> Line:
    word = RANGE_WORDS.get(view.state.range_seconds, "")
    found = [
        Span(f" Last {word}", "bold"),
        Span("   highest value of each column; a gap is time without data", "muted"),
    ]
    return tuple(found)


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


def chart_lines(pool: Pool, view: View, width: int, rows: int) -> list[Line]:
    """Return the chart of a pool over the range that is shown, without a title."""
    return [*_chart_of(f"pool.{pool.id}.used_bytes", pool, view, width, rows)[1:], _axis(view, width)]


def _chart_of(name: str, place: Place, view: View, width: int, rows: int) -> list[Line]:
    """Return a chart with its name above it, the scale at the left and the levels in colour."""
    start, end = _span(view)
    columns = max(1, width - LABEL - 2)
    whole = whole_of(place)
    trend = _trend(name, view)
    values, lowest = trend.columns(start, end, columns), trend.lowest(start, end)
    at = _cursor(view, start, end, columns)
    marks = marks_of(place, view.moment.snapshot.pressure)
    lines: list[Line] = [
        (Span(f" {labels_of(view.moment.snapshot)[place.id]}", "bold"), *_statistics(values, lowest))
    ]
    for number, text in enumerate(chart(values, whole, rows)):
        top = whole * (rows - number) / rows
        label = short(round(top)) if number in (0, rows // 2) else ""
        ratio = (rows - number - 0.5) / rows
        style = style_at(ratio, marks)
        cellsrow = [Span("│" if column == at and char == " " else char, style) for column, char in enumerate(text)]
        lines.append((Span(f" {label:>{LABEL - 2}} ", "muted"), Span("│", "muted"), *merge(cellsrow)))
    return lines


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


def _axis(view: View, width: int) -> Line:
    """Return the times below the charts."""
    start, end = _span(view)
    columns = max(1, width - LABEL - 2)
    row = [" "] * columns
    pattern = "%m-%d %H:%M" if end - start > 86_400 else "%H:%M" if end - start > 3600 else "%H:%M:%S"
    count = max(2, columns // 24)
    for number in range(count + 1):
        text = time.strftime(pattern, time.localtime(start + (end - start) * number / count))
        at = max(0, min(columns - len(text), round(columns * number / count) - (len(text) // 2 if number else 0)))
        row[at : at + len(text)] = text
    return (Span(" " * LABEL), Span("".join(row)[:columns], "muted"))


DAY_SECONDS = 86_400


def events_page(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view), ()], [])
    lines = [line for one in _shown(view) for line in _wrapped(one, view.width, view.now)]
    room = view.height - 1 - len(body.lines)
    offset = max(0, min(view.state.offset, len(lines) - room))
    body.rows, body.total = room, len(lines)
    body.lines += lines[offset : offset + room] or [(Span(f" {_empty(view)}", "muted"),)]
    return finish(view, body)


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
