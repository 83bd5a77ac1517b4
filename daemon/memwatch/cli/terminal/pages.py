"""The page that a view shows: GPUs, one process, events, help, and those of other modules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from memwatch.cli.terminal.figures import short, spark
from memwatch.cli.terminal.frame import (
    MIN_HEIGHT,
    MIN_WIDTH,
    Body,
    Frame,
    View,
    finish,
    header_of,
    notice_lines,
    scroll,
)
from memwatch.cli.terminal.gpus import gpu_line, mig_line, mig_of, name_width_of
from memwatch.cli.terminal.history import events_page, history_page
from memwatch.cli.terminal.moment import labels_of
from memwatch.cli.terminal.overview import overview
from memwatch.cli.terminal.past import RECENT_SECONDS
from memwatch.cli.terminal.style import Line, Span, clip_line, line_cells, pad, wrapped
from memwatch.core.model import Absent, AllocatorReport, Bytes, Device, Process, Words
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
    lines = fit_blocks(devices, view, view.height - 1 - len(body.lines))
    if not devices:
        words = view.moment.snapshot.machine.explanation or "No GPU found."
        lines = [(Span(f" {words}", "muted"),)]
    return scroll(view, body, lines)


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
    "the strip above the past has the level of each time. FOOTPRINT is RSS plus GPU memory; DEVICE is memory of a",
    "GPU or NPU. 10MIN is the growth in the last ten minutes, or since the process was first seen. ON is the GPU,",
    "7:2 for MIG instance 2 of GPU 7.",
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


# The page of one process: its memory by place, its growth, its identity, and the reports of its allocators.

LABEL, SIZE = 13, 12
WINDOWS = (("60", "1 min"), ("600", "10 min"), ("3600", "1 h"))
Row = tuple[str, str, str]


def process_page(view: View) -> Frame:
    """Return the page of the process that was opened."""
    snapshot = view.moment.snapshot
    process = next((one for one in snapshot.processes if one.pid == view.state.opened), None)
    body = Body([header_of(view), *notice_lines(view), ()], [])
    if process is None:
        body.lines += [(Span(f" {line}", ""),) for line in wrapped(_missing(view), view.width - 2)]
        return finish(view, body)
    return scroll(view, body, [_title(process), *_lines(process, view)])


def _missing(view: View) -> str:
    if view.moment.note:
        return ""
    return f"Process {view.state.opened} is not listed: it has ended, or others are larger. Esc goes back."


def _title(process: Process) -> Line:
    return Span(f" {process.title}", "bold accent"), Span(f"  PID {process.pid}", "bold")


def _lines(process: Process, view: View) -> Iterator[Line]:
    yield from _rows(_memory(process, view), view)
    yield from _trend(process, view)
    yield ()
    yield from _rows(_identity(process, view), view)
    reports = [one for one in view.moment.snapshot.claims if one.pid == process.pid]
    if reports:
        yield ()
        yield (Span(" Allocators, as the program reports them", "bold"),)
        yield from _rows([_report(one) for one in reports], view)


def _rows(rows: Sequence[Row] | Iterator[Row], view: View) -> Iterator[Line]:
    """Yield rows of a label, a figure and a note, wrapped to the width."""
    for label, value, note in rows:
        lead = Span(f" {pad(label, LABEL)} ", "muted")
        room = max(20, view.width - LABEL - 3)
        if note:
            parts = wrapped(note, room - SIZE - 2)
            yield lead, Span(pad(value, SIZE, right=True), "bold"), Span(f"  {parts[0]}", "muted")
            yield from ((Span(" " * (LABEL + SIZE + 4) + part, "muted"),) for part in parts[1:])
        else:
            parts = wrapped(value, room)
            yield lead, Span(parts[0])
            yield from ((Span(" " * (LABEL + 2) + part),) for part in parts[1:])


def _memory(process: Process, view: View) -> Iterator[Row]:
    basis = wording.basis(process.footprint_basis, process.device_bytes)
    yield "footprint", wording.footprint(process), basis or " "
    yield "RSS", *_figure(process.rss_bytes, "resident set; shared pages count fully")
    yield _pss(view)
    names = labels_of(view.moment.snapshot)
    for place, held in process.device_bytes.items():
        yield names.get(place, place), *_figure(held, _device_of(place, view))
    yield "swap", *_figure(process.swap_bytes, "")
    yield "growth", *_growth(process, view)
    yield _oom_score(view)


def _figure(found: Bytes, note: str) -> tuple[str, str]:
    """Return a size and its note, or a dash and the reason of its absence."""
    if isinstance(found, Absent):
        return wording.DASH, wording.absent(found).removeprefix(f"{wording.DASH} ")
    return wording.size(found), note or " "


def _device_of(place: str, view: View) -> str:
    """Return the GPU that a pool or share belongs to: "GPU0 NVIDIA GB10"."""
    snapshot = view.moment.snapshot
    owner = next((one.device for one in snapshot.shares if one.id == place), None) or place
    found = (one for one in snapshot.devices if one.id == owner or place in one.allocates_from)
    device = next(found, None)
    return f"of {device.id.upper()} {device.name}" if device else " "


def _pss(view: View) -> Row:
    reading = view.moment.reading
    if reading is None or reading.pid != view.state.opened:
        return "PSS", wording.DASH, "not read yet"
    if isinstance(reading.pss_bytes, Absent):
        return "PSS", wording.DASH, reading.pss_note or "not available"
    return (
        "PSS",
        wording.size(reading.pss_bytes),
        "proportional set: shared pages are divided",
    )


def _oom_score(view: View) -> Row:
    reading = view.moment.reading
    if reading is None or reading.pid != view.state.opened:
        return "OOM score", wording.DASH, "not read yet"
    if isinstance(reading.oom_score, Absent):
        return "OOM score", wording.DASH, reading.oom_note or "not available"
    score, adjustment = reading.oom_score
    note = f"oom_score_adj {adjustment}; the highest score is killed first; GPU memory does not count in it"
    return "OOM score", str(score), note


def _growth(process: Process, view: View) -> tuple[str, str]:
    grown = view.moment.growth.get(process.pid)
    if grown is None:
        reason = "not enough history" if view.moment.has_history else "needs a daemon"
        return wording.DASH, reason
    windows = [
        f"{wording.change(grown['windows'][key])} in {words}"
        for key, words in WINDOWS
        if grown["windows"].get(key) is not None
    ]
    span = wording.duration(max(1.0, round(view.moment.unix - grown["from_unix"])))
    note = "; ".join(windows) or " "
    return wording.change(grown["grown_bytes"]), f"in {span}; {note}" if windows else f"in {span}"


def _trend(process: Process, view: View) -> Iterator[Line]:
    """Yield ten minutes of the footprint, as far as this program has received it."""
    trend = view.moment.sizes.get(process.pid)
    if trend is None or len(trend.unix) < 2:
        return
    end = view.moment.unix
    width = max(8, min(120, view.width - LABEL - 4))
    values = trend.columns(end - RECENT_SECONDS, end, width)
    known = [value for value in values if value is not None]
    if known:
        lead = Span(f" {pad('last 10 min', LABEL)} ", "muted")
        yield lead, Span(spark(values, max(known)), "process")


def _identity(process: Process, view: View) -> Iterator[Row]:
    names = view.moment.snapshot
    yield "user", _known(process.user) or wording.DASH, ""
    yield "unit", _known(process.unit) or wording.DASH, ""
    for label, value, titles in (
        ("container", process.container, names.container_names),
        ("pod", process.pod, names.pod_names),
        ("job", process.job, {}),
    ):
        if found := _known(value):
            yield label, f"{titles[found]} ({found})" if found in titles else found, ""
    yield "started", _started(process, view), ""
    yield "command line", _command(process), ""
    if process.note:
        yield "note", process.note, ""


def _known(value: Words | None) -> str:
    return value if isinstance(value, str) else ""


def _started(process: Process, view: View) -> str:
    at = process.start_time
    if isinstance(at, Absent):
        return wording.DASH
    ago = wording.duration(max(1.0, round(view.moment.unix - at)))
    return f"{time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(at))}, {ago} ago"


def _command(process: Process) -> str:
    if isinstance(process.command, Absent):
        return wording.absent(process.command)
    return process.command or "not read: set command_lines = true under [processes] of memwatchd"


def _report(report: AllocatorReport) -> Row:
    """Return an allocator's report: its reserved bytes, and what is in use of them."""
    parts = (
        (report.allocated_bytes, "allocated"),
        (report.inactive_split_bytes, "fragmented"),
        (report.limit_bytes, "limit"),
    )
    found = [f"{words} {wording.size(size)}" for size, words in parts if not isinstance(size, Absent)]
    if isinstance(report.retries, int) and report.retries:
        found.append(f"retried {wording.count(report.retries, 'time')}")
    if isinstance(report.ooms, int) and report.ooms:
        found.append(wording.count(report.ooms, "OOM error"))
    where = report.device or report.gpu or ""
    return (
        report.name,
        wording.size(report.reserved_bytes),
        ", ".join([f"reserved on {where}" if where else "reserved", *found]),
    )
