"""Select the page that a view shows."""

from __future__ import annotations

from memwatch.cli.terminal.events import events_page
from memwatch.cli.terminal.frame import (
    MIN_HEIGHT,
    MIN_WIDTH,
    Body,
    Frame,
    View,
    finish,
    header_of,
)
from memwatch.cli.terminal.gpu_page import gpu_page
from memwatch.cli.terminal.history import history_page
from memwatch.cli.terminal.overview import overview
from memwatch.cli.terminal.process_page import process_page
from memwatch.cli.terminal.style import Span, clip_line, pad, wrapped

HELP = (
    ("1 2 3 4, Tab", "overview, GPUs, history, events"),
    ("↑ ↓, Enter", "mark a process and show its details; or click on it twice"),
    ("PgUp PgDn g G", "scroll; also the mouse wheel"),
    ("s  <  >", "sort by the next or previous column; or click on its title"),
    ("r", "reverse the order"),
    ("/", "filter by PID, user, name or unit; Esc clears it"),
    ("t", "group processes by unit or container"),
    ("Space", "pause and continue"),
    ("← →", "back and forth in time by 10 s; with Shift by 1 min"),
    ("+ -", "history: longer or shorter range"),
    ("Ctrl-Z", "suspend; fg continues"),
    ("q, Ctrl-C", "quit"),
)
LEGEND = (
    "FOOTPRINT is RSS plus GPU memory. 10MIN is its growth in the last ten minutes, or since the process was first",
    "seen. ON is the GPU, 7:2 for MIG instance 2 of GPU 7. Brackets below a bar name what is inside it: CUDA Pool",
    "⊂ System RAM is one memory, not two. Lines through a bar are the levels medium, high and critical.",
)


def render(view: View) -> Frame:
    """Return the frame of a view."""
    if view.width < MIN_WIDTH or view.height < MIN_HEIGHT:
        text = f"memwatch top needs {MIN_WIDTH}×{MIN_HEIGHT} cells; this terminal has {view.width}×{view.height}."
        lines = (clip_line((Span(text),), view.width), *[()] * max(0, view.height - 1))
        return Frame(lines)
    if view.state.has_help:
        return _help(view)
    if view.state.opened:
        return process_page(view)
    return {1: overview, 2: gpu_page, 3: history_page, 4: events_page}[view.state.page](view)


def _help(view: View) -> Frame:
    body = Body([header_of(view), (), (Span(" Keys", "bold"),)], [])
    body.lines += [(Span(f"  {pad(keys, 16)}", "accent"), Span(words)) for keys, words in HELP]
    body.lines += [(), *((Span(f" {text}", "muted"),) for text in wrapped(" ".join(LEGEND), view.width - 2))]
    body.lines += [(), (Span(" Any key closes this page.", "bold"),)]
    return finish(view, body)
