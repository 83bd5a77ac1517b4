"""One process: its memory by place, its growth, its identity, and the reports of its allocators."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from memwatch.cli.terminal.figures import spark
from memwatch.cli.terminal.frame import Body, Frame, View, finish, header_of, notice_lines
from memwatch.cli.terminal.moment import labels_of
from memwatch.cli.terminal.past import RECENT_SECONDS
from memwatch.cli.terminal.style import Line, Span, pad, wrapped
from memwatch.core.model import Absent, AllocatorReport, Bytes, Process, Words
from memwatch.reporting.render import words as wording

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
    lines = [_title(process), *_lines(process, view)]
    room = view.height - 1 - len(body.lines)
    offset = max(0, min(view.state.offset, len(lines) - room))
    body.rows, body.total = room, len(lines)
    body.lines += lines[offset : offset + room]
    return finish(view, body)


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
    yield "footprint", wording.footprint(process), wording.basis(process.footprint_basis) or " "
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
