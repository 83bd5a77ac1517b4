"""Select the page that a view shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec.structs import replace

from memwatch.cli.terminal.figures import short
from memwatch.cli.terminal.frame import (
    MIN_HEIGHT,
    MIN_WIDTH,
    Body,
    Frame,
    View,
    finish,
    header_of,
    notice_lines,
)
from memwatch.cli.terminal.gpus import gpu_line, mig_line, mig_of, name_width_of
from memwatch.cli.terminal.history import events_page, history_page
from memwatch.cli.terminal.overview import overview
from memwatch.cli.terminal.process_page import process_page
from memwatch.cli.terminal.style import Line, Span, clip_line, line_cells, pad, wrapped
from memwatch.core.model import Absent, Device
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.memory_map import held_in

# Page 2: each GPU with its MIG instances, what it can allocate, its sensors and its largest processes.

# A column that is narrower has no room for bars.
MIN_COLUMN = 90
# Lines of a detail that is not cut.
WRAPPED = 9
# Width of the names of keys on the page of help.
HELP_KEYS = 15
Block = list[Line]


def gpu_page(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view), ()], [])
    devices = view.moment.snapshot.devices
    room = view.height - 1 - len(body.lines)
    lines = fit_blocks(devices, view, room)
    if not devices:
        words = view.moment.snapshot.machine.explanation or "No GPU found."
        lines = [(Span(f" {words}", "muted"),)]
    offset = max(0, min(view.state.offset, len(lines) - room))
    body.rows, body.total = room, len(lines)
    body.lines += lines[offset : offset + room]
    return finish(view, body)


def fit_blocks(devices: Sequence[Device], view: View, room: int) -> list[Line]:
    """Return all GPUs on one screen: below each other, else side by side, first with details cut, then without.

    A terminal that is too small for that scrolls over all of it.
    """
    count = max(1, view.width // MIN_COLUMN)
    for columns, most in ((1, WRAPPED), (1, 1), (count, WRAPPED), (count, 1), (count, 0)):
        lines = _arranged(devices, view, columns, most)
        if len(lines) <= room:
            return lines
    return _arranged(devices, view, 1, WRAPPED)


def _arranged(devices: Sequence[Device], view: View, columns: int, most: int) -> list[Line]:
    """Return the GPUs in columns. `most`: lines that each of their details may take."""
    width = view.width // columns
    blocks = [_block(device, replace(view, width=width), most) for device in devices]
    lines: list[Line] = []
    for first in range(0, len(blocks), columns):
        rows = zip_longest(*blocks[first : first + columns], fillvalue=())
        lines += [_side_by_side(row, width) for row in rows]
        lines.append(())
    return lines[:-1]


def _side_by_side(row: Sequence[Line], width: int) -> Line:
    cut = [clip_line(line, width) for line in row]
    spaces = [Span(" " * (width - line_cells(line))) for line in cut]
    return tuple(span for line, space in zip(cut, spaces, strict=True) for span in (*line, space))


def _block(device: Device, view: View, most: int) -> Block:
    width = name_width_of(view.moment.snapshot.devices, view)
    lines = [gpu_line(device, view, width)]
    lines += [mig_line(share, view, width) for share in mig_of(device, view)]
    texts = _details(device, view) if most else []
    found = (part for text in texts for part in (wrapped(text, view.width - 8) if most > 1 else [text]))
    return [*lines, *[(Span(f"       {text}", "muted"),) for text in found]]


def _details(device: Device, view: View) -> list[str]:
    can = wording.can_allocate(device.headroom_bytes, device.headroom_after_reclaim_bytes)
    first = [wording.architecture(device.architecture.value), can]
    second = [wording.vitals(device.vitals)]
    if not isinstance(device.busy_ratio, Absent):
        second.insert(0, f"utilization {wording.ratio(device.busy_ratio)}")
    if device.state != "ok":
        second.append(device.state.replace("_", " "))
    found = [", ".join(first), ", ".join(filter(None, second)), _holders(device, view)]
    return [text for text in (*found, *device.notes) if text]


def _holders(device: Device, view: View) -> str:
    """Name the processes that hold most of a GPU, with their memory on this one."""
    snapshot = view.moment.snapshot
    places = {device.id, *(one.id for one in snapshot.shares if one.device == device.id)}
    held = [(held_in(one, places), one) for one in snapshot.processes]
    largest = sorted(((size, one) for size, one in held if size), key=lambda pair: (-pair[0], pair[1].pid))
    shown = [f"{one.title} {one.pid} {short(size)}" for size, one in largest[:4]]
    more = f", {len(largest) - 4} more" if len(largest) > 4 else ""
    return f"held by {', '.join(shown)}{more}" if shown else ""


HELP = (
    ("1 2 3 4, Tab", "overview, GPUs, history, events"),
    ("↑ ↓ j k", "mark a process"),
    ("Enter", "show its details; or click on it twice"),
    ("Esc", "back: close it, end a pause or a filter"),
    ("PgUp PgDn g G", "scroll; also Home, End, the mouse wheel"),
    ("s  <  >", "sort by another column; or click on it"),
    ("r", "reverse the order"),
    ("/ f", "filter by PID, user, name or unit"),
    ("t", "group processes by unit or container"),
    ("Space p", "pause and continue"),
    ("← →", "back and forth in time by 10 s"),
    ("Shift-← →, [ ]", "back and forth in time by 1 min"),
    ("+ -", "history: longer or shorter range"),
    ("u", "details: read the PSS again"),
    ("Ctrl-L", "draw the screen again"),
    ("Ctrl-Z", "suspend; fg continues"),
    ("? h F1", "this page"),
    ("q, Ctrl-C", "quit"),
)
LEGEND = (
    "Bytes go up, time goes to the left, and what is inside a memory stands to its right: CUDA Pool ⊂ System RAM",
    "is one memory, not two. Between the past and now are the thresholds of the levels medium, high and critical;",
    "the strip above the past has the level of each time. FOOTPRINT is RSS plus GPU memory. 10MIN is its growth",
    "in the last ten minutes, or since the process was first seen. ON is the GPU, 7:2 for MIG instance 2 of GPU",
    "7.",
)


def render(view: View) -> Frame:
    """Return the frame of a view."""
    if view.width < MIN_WIDTH or view.height < MIN_HEIGHT:
        return _too_small(view)
    if view.state.has_help:
        return _help(view)
    if view.state.opened:
        return process_page(view)
    return {1: overview, 2: gpu_page, 3: history_page, 4: events_page}[view.state.page](view)


def _too_small(view: View) -> Frame:
    """Return a sentence, or what of it fits. The key that quits is the last to go."""
    needed, has = f"{MIN_WIDTH}×{MIN_HEIGHT}", f"{view.width}×{view.height}"
    texts = (
        f"memwatch top needs {needed} cells; this terminal has {has}. q quits.",
        f"{has} cells; needs {needed}. q quits.",
        f"{needed}! q quits",
    )
    choices = [wrapped(view.spell(text), view.width) for text in texts]
    fits = (one for one in choices if len(one) <= view.height and max(map(len, one)) <= view.width)
    found = next(fits, ["q quits"])[: view.height]
    lines = [clip_line((Span(text),), view.width) for text in found]
    return Frame((*lines, *[()] * (view.height - len(lines))))


def _help(view: View) -> Frame:
    body = Body([header_of(view), (Span(" Keys", "bold"),)], [])
    room = view.width - HELP_KEYS - 3
    lines: list[Line] = []
    for keys, words in HELP:
        first, *more = wrapped(words, room)
        lines.append((Span(f"  {pad(view.spell(keys), HELP_KEYS)}", "accent"), Span(first)))
        lines += [(Span(" " * (HELP_KEYS + 2) + text),) for text in more]
    lines += [(), *((Span(f" {text}", "muted"),) for text in wrapped(view.spell(" ".join(LEGEND)), view.width - 2))]
    rows = view.height - len(body.lines) - 2
    offset = max(0, min(view.state.help_offset, len(lines) - rows))
    body.lines += lines[offset : offset + rows]
    body.lines += [()] * (view.height - 2 - len(body.lines))
    more_words = " ↑ ↓ scroll, any other key closes." if len(lines) > rows else " Any key closes this page."
    body.lines.append((Span(view.spell(more_words), "bold"),))
    body.rows, body.total = rows, len(lines)
    return finish(view, body)
