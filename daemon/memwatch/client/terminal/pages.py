"""Select the page that a view shows."""

from __future__ import annotations

from memwatch.client.figures import certain_headroom, decode_vitals, figure
from memwatch.client.terminal.events import events_page
from memwatch.client.terminal.frame import (
    MIN_HEIGHT,
    MIN_WIDTH,
    Body,
    Frame,
    View,
    finish,
    header_of,
    notice_lines,
)
from memwatch.client.terminal.gpus import gpu_line, mig_line, mig_of, name_width_of
from memwatch.client.terminal.history import history_page
from memwatch.client.terminal.overview import overview
from memwatch.client.terminal.processes import rows_of
from memwatch.client.terminal.sizes import short
from memwatch.client.terminal.style import Line, Span, clip_line, pad
from memwatch.render import words as wording

HELP = (
    ("1 2 3 4, Tab", "overview, GPUs, history, events"),
    ("↑ ↓ PgUp PgDn", "scroll; also j and k, g and G, and the mouse wheel"),
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
    return {1: overview, 2: gpu_page, 3: history_page, 4: events_page}[view.state.page](view)


def _help(view: View) -> Frame:
    body = Body([header_of(view), (), (Span(" Keys", "bold"),)], [])
    body.lines += [(Span(f"  {pad(keys, 16)}", "accent"), Span(words)) for keys, words in HELP]
    body.lines += [(), *((Span(f" {text}", "muted"),) for text in _wrapped(" ".join(LEGEND), view.width - 2))]
    body.lines += [(), (Span(" Any key closes this page.", "bold"),)]
    return finish(view, body)


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def gpu_page(view: View) -> Frame:
    """Page 2: each GPU with its MIG instances, what it can allocate, its sensors and its largest processes."""
    body = Body([header_of(view), *notice_lines(view), ()], [])
    devices = view.moment.snapshot["devices"]
    width = name_width_of(devices, view)
    lines: list[Line] = []
    for device in devices:
        lines.append(gpu_line(device, view, width))
        lines += [mig_line(share, view, width) for share in mig_of(device, view)]
        lines += [(Span(f"       {text}", "muted"),) for text in _details(device, view)]
        lines.append(())
    if not devices:
        words = view.moment.snapshot["machine"]["explanation"] or "No GPU found."
        lines.append((Span(f" {words}", "muted"),))
    room = view.height - 1 - len(body.lines)
    offset = max(0, min(view.state.offset, len(lines) - room))
    body.rows, body.total = room, len(lines)
    body.lines += lines[offset : offset + room]
    return finish(view, body)


def _details(device: dict[str, object], view: View) -> list[str]:
    can = wording.can_allocate(certain_headroom(device), figure(device, "headroom_bytes"))
    first = [wording.architecture(str(device["architecture"])), can]
    second = [wording.vitals(decode_vitals(device))]
    if device.get("busy_ratio") is not None:
        second.insert(0, f"utilization {wording.ratio(float(str(device['busy_ratio'])))}")
    if device["state"] != "ok":
        second.append(str(device["state"]).replace("_", " "))
    found = [", ".join(first), ", ".join(filter(None, second)), _holders(device, view)]
    notes = device.get("notes") or ()
    return [text for text in (*found, *map(str, notes if isinstance(notes, list) else ())) if text]


def _holders(device: dict[str, object], view: View) -> str:
    number = str(device["id"]).removeprefix("gpu")
    rows = [row for row in rows_of(view.moment.snapshot, {}) if _is_on(row.gpus, number) and row.gpu]
    rows.sort(key=lambda row: -(row.gpu or 0))
    shown = [f"{row.name} {row.pid} {short(row.gpu)}" for row in rows[:4]]
    more = f", {len(rows) - 4} more" if len(rows) > 4 else ""
    return f"held by {', '.join(shown)}{more}" if shown else ""


def _is_on(gpus: str, number: str) -> bool:
    return any(one.partition(":")[0] == number for one in gpus.split(","))
