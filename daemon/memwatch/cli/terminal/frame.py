"""Parts that all pages share: the view, the finished frame, the header and the footer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from memwatch.cli.charset import to_ascii
from memwatch.cli.terminal.moment import (
    MARKS,
    STYLES,
    Moment,
    labels_of,
    level_word,
    outlook,
)
from memwatch.cli.terminal.state import PAGES, Region, State
from memwatch.cli.terminal.style import Line, Span, cells, clip_line, line_cells, spread, wrapped
from memwatch.core.model import known_or
from memwatch.core.snapshot import Machine
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.summary import find_worst, notices_of
from memwatch.reporting.render.summary import notice_lines as silence_lines

MIN_WIDTH, MIN_HEIGHT = 40, 10
# From this width on there is room for events beside the picture.
WIDE = 150
SIGNS = {"left": "←", "right": "→", "esc": "Esc", "enter": "Enter"}


# A key, its word and the style of both.
Key = tuple[str, str, str]


class View(Struct, frozen=True):
    """Everything that a frame depends on. `now`: Unix time of the terminal's clock."""

    moment: Moment
    state: State
    width: int
    height: int
    now: float
    has_colour: bool = True
    is_ascii: bool = False

    def spell(self, text: str) -> str:
        """Return a text in the characters of the terminal. Spell before measuring: ⊂ becomes two letters."""
        return to_ascii(text) if self.is_ascii else text

    @property
    def is_wide(self) -> bool:
        return self.width >= WIDE


class Frame(Struct, frozen=True):
    """Lines of a screen, cells that can be clicked, and the visible and total number of rows of its list.

    `pids`: the process of each row of the table, 0 for a group.
    """

    lines: tuple[Line, ...]
    regions: tuple[Region, ...] = ()
    rows: int = 1
    total: int = 0
    pids: tuple[int, ...] = ()


class Body(Struct):
    """Lines of a page under construction."""

    lines: list[Line]
    regions: list[Region]
    rows: int = 1
    total: int = 0
    pids: tuple[int, ...] = ()


def scroll(view: View, body: Body, lines: Sequence[Line]) -> Frame:
    """Fill the room below with the lines from the offset on, and finish the page."""
    room = max(1, view.height - 1 - len(body.lines))
    offset = max(0, min(view.state.offset, len(lines) - room))
    body.rows, body.total = room, len(lines)
    body.lines += lines[offset : offset + room]
    return finish(view, body)


def finish(view: View, body: Body) -> Frame:
    """Add the footer and cut everything to the size of the terminal."""
    lines = body.lines[: view.height - 1]
    lines += [()] * (view.height - 1 - len(lines))
    footer, regions = footer_of(view)
    lines.append(footer)
    cut = tuple(_spelled(clip_line(_spelled(line, view), view.width), view) for line in lines)
    kept = [one for one in body.regions if one.line < view.height - 1]
    return Frame(cut, (*kept, *regions), body.rows, body.total, body.pids)


def _spelled(line: Line, view: View) -> Line:
    return tuple(span._replace(text=to_ascii(span.text)) for span in line) if view.is_ascii else line


def header_of(view: View) -> Line:
    """Return the first line: host, machine, worst level, time left and clock.

    A narrow terminal cuts the machine, the host, the target and the clock, in this order, and never the time left.
    """
    snapshot = view.moment.snapshot
    clock = (*_clock(view), Span(" "))
    choices = ((*_status(view), *clock), (*_status(view, with_target=False), *clock), _status(view, False))
    right = next((one for one in choices if line_cells(one) <= view.width), choices[-1])
    left = [
        Span(" "),
        Span(snapshot.host, "bold"),
        *((Span(" demo", "accent"),) if snapshot.simulated else ()),
    ]
    room = view.width - line_cells(left) - line_cells(right) - 3
    about = next((text for text in _machine_words(snapshot.machine) if cells(text) <= room), "")
    return spread((*left, Span(f"  {about}", "muted")), right, view.width)


def _machine_words(machine: Machine) -> list[str]:
    """Return descriptions of the machine, from long to short."""
    name = known_or(machine.name, "")
    kind = wording.architecture(machine.architecture)
    return [" · ".join(word for word in words if word) for words in ((name, kind), (name,))]


def _status(view: View, with_target: bool = True) -> Line:
    snapshot = view.moment.snapshot
    worst = find_worst(snapshot)
    if worst is None:
        return (Span("no memory data", "muted"),)
    level = worst.level.word
    found = [Span(f"{MARKS[level]} {level_word(level)}", _badge(level))]
    if with_target and len(snapshot.pressure) > 1 and level != "low":
        found.append(Span(f" {labels_of(snapshot).get(worst.target, worst.target)}", "bold"))
    if words := outlook(worst, view.moment.is_current and view.state.paused_at is None):
        found.append(Span(f"  {words}", f"bold {STYLES[level]}"))
    return tuple(found)


def _badge(level: str) -> str:
    return f"bold {STYLES[level]}" + (" reverse" if level == "critical" else "")


def _clock(view: View) -> Line:
    at = time.localtime(view.moment.unix)
    words = time.strftime("%H:%M:%S %Z" if view.width >= 100 else "%H:%M:%S", at)
    if view.state.paused_at is not None:
        ago = wording.duration(max(1.0, round(view.now - view.moment.unix)))
        return (Span("  "), Span(f"paused {words}, {ago} ago", "bold reverse"))
    if view.moment.error:
        ago = wording.duration(max(1.0, round(view.now - view.moment.unix)))
        return (Span("  "), Span(f"no data for {ago}", "bold reverse"))
    return (Span(f"  {words}"),)


def footer_of(view: View) -> tuple[Line, Sequence[Region]]:
    """Return the last line: pages and keys, or the filter while it is typed."""
    state, line = view.state, view.height - 1
    if state.is_editing:
        return (
            Span(" filter: ", "bold"),
            Span(state.filter),
            Span(" ", "reverse"),
            Span("  Enter keeps it, Esc clears it", "muted"),
        ), ()
    return _fit_keys(tuple(_pages(view)), tuple(_keys(view)), view.width, line, view.is_ascii)


@lru_cache(maxsize=16)
def _fit_keys(
    pages: Sequence[Key], keys: Sequence[Key], width: int, line: int, is_ascii: bool
) -> tuple[Line, Sequence[Region]]:
    """Return the pages and as many keys as fit. The line of a frame is mostly that of the frame before it."""
    short = [(key, word if style else "", style) for key, word, style in pages]
    choices = [(names, keys[:number]) for names in (pages, short) for number in range(len(keys), -1, -1)]
    drawn = ([*names, ("", "", ""), *chosen, *_LAST_KEYS] for names, chosen in choices)
    lines = (_key_line(one, width, line, is_ascii) for one in (*drawn, _LAST_KEYS))
    return next((one for one in lines if line_cells(one[0]) <= width), _key_line(_LAST_KEYS, width, line, is_ascii))


def _key_line(keys: Sequence[Key], width: int, line: int, is_ascii: bool) -> tuple[Line, Sequence[Region]]:
    gap = "  " if width >= 90 else " "
    found: list[Span] = [Span(" ")]
    regions = []
    for key, word, style in keys:
        start, sign = line_cells(found), SIGNS.get(key, key)
        sign = to_ascii(sign) if is_ascii else sign
        plain_style = style if style == "reverse" else "muted" if style else ""
        found += [Span(sign, f"{style} bold"), Span(f" {word}" if word else "", plain_style), Span(gap)]
        if key:
            regions.append(Region(line, start, start + len(sign) + len(word) + 1, key))
    return tuple(found[:-1]), tuple(regions)


# What must be found at once is never left out.
_LAST_KEYS = (("?", "help", "accent"), ("q", "quit", "accent"))


def _pages(view: View) -> list[Key]:
    return [(str(number), name, "reverse" * (number == view.state.page)) for number, name in enumerate(PAGES, 1)]


def _keys(view: View) -> list[Key]:
    """Return the keys of the page, the most important first: a narrow terminal has the first of them only."""
    state = view.state
    if state.opened:
        keys = [("esc", "back"), ("u", "read PSS again")]
    elif state.paused_at is not None:
        keys = [("esc", "live"), ("left", "back"), ("right", "forth")]
    elif state.page == 3:
        keys = [("+", "longer"), ("-", "shorter"), ("left", "back")]
    elif state.page == 1:
        keys = [
            ("/", "filter"),
            ("s", "sort"),
            ("t", "tree"),
            *([("enter", "details")] if view.width >= 90 else []),
        ]
    else:
        keys = [("left", "back")]
    return [(key, word, "accent") for key, word in keys]


def notice_lines(view: View) -> list[Line]:
    """Return lines about missing data, such as a lost connection, an OOM kill that just happened, and silences."""
    snapshot = view.moment.snapshot
    worst = find_worst(snapshot)
    kills = [one.text for one in worst.reasons if one.signal == "oom_kill"] if worst else []
    found = [Span(f" {text}", "bold critical") for text in kills]
    found += [Span(f" {text}", "bold high") for text in (view.moment.error,) if text]
    for text in silence_lines(notices_of(snapshot), snapshot.unix):
        found += [Span(f" {part}", "bold medium") for part in wrapped(text, view.width - 2)]
    found += [Span(f" {view.moment.note}", "muted")] if view.moment.note else []
    return [(span,) for span in found]


def rule(view: View) -> Line:
    return (Span("─" * view.width, "muted"),)
