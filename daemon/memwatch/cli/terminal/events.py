"""Page 4: recent events, newest first."""

from __future__ import annotations

import time
from typing import Any

from memwatch.cli.terminal.frame import Body, Frame, View, finish, header_of, notice_lines
from memwatch.cli.terminal.moment import LEVELS, STYLES
from memwatch.cli.terminal.style import Line, Span, clip, wrapped

Json = dict[str, Any]
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


def _shown(view: View) -> list[Json]:
    return [one for one in view.moment.events if one["unix"] <= view.moment.unix + 1]


def _wrapped(event: Json, width: int, now: float, is_cut: bool = False) -> list[Line]:
    """Return the lines of an event. `is_cut`: one line, with an ellipsis."""
    at = time.localtime(event["unix"])
    today = time.localtime(now)[:3] == at[:3]
    clock = time.strftime("%H:%M:%S" if today else "%m-%d %H:%M:%S", at)
    room = max(10, width - len(clock) - 13)
    texts = [clip(event["text"], room)] if is_cut else wrapped(event["text"], room)
    style = style_of(event)
    first = Span(f" {clock}  ", "muted"), Span(f"{event['kind'][:9]:<9} ", "muted"), Span(texts[0], style)
    return [first, *((Span(" " * (len(clock) + 13)), Span(text, style)) for text in texts[1:])]


def style_of(event: Json) -> str:
    """Return the style of an event: that of the level it reached, or of an OOM kill."""
    if event["kind"] == "oom_kill":
        return "bold critical"
    text = event["text"]
    if event["kind"] == "level" and "→" in text:
        word = text.partition("→")[2].split()[0] if text.partition("→")[2].split() else ""
        return STYLES.get(word.lower(), "ok" if word == "OK" else "")
    if event["kind"] == "alert" and "resolved" not in text:
        return next((STYLES[level] for level in reversed(LEVELS[1:]) if level in text), "")
    return ""
