"""Page 1: the map of System RAM, one line per GPU, and the processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwatch.cli.terminal.events import event_lines
from memwatch.cli.terminal.frame import Body, Frame, View, finish, header_of, notice_lines, rule
from memwatch.cli.terminal.gpus import (
    RECENT_SECONDS,
    gpu_line,
    mig_line,
    mig_of,
    name_width_of,
    worst_first,
)
from memwatch.cli.terminal.history import chart_lines
from memwatch.cli.terminal.holders import names_in
from memwatch.cli.terminal.memory_map import (
    brackets_of,
    draw_bar,
    draw_brackets,
    legend,
    mark_cell,
    merge,
    parts_of,
    segments,
)
from memwatch.cli.terminal.moment import LEVELS, STYLES, living_of
from memwatch.cli.terminal.processes import add_table
from memwatch.cli.terminal.sizes import pair, short
from memwatch.cli.terminal.style import Line, Span, cells, clip, line_cells
from memwatch.cli.terminal.thresholds import Mark, marks_of, style_at
from memwatch.cli.terminal.trend import spark
from memwatch.core.processes.growth import MIN_FALL_BYTES
from memwatch.monitor.render import words as wording

Json = dict[str, Any]
# Lines that always remain for the table: its header and some rows.
MIN_TABLE = 6
MIN_CHART, MAX_CHART, EVENT_ROWS = 6, 14, 5


def overview(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view)], [])
    snapshot = view.moment.snapshot
    for pool in snapshot["pools"]:
        if pool["kind"] == "system_ram":
            body.lines += pool_lines(pool, view)
    body.lines.append(_recent_line(view))
    body.lines += _gpu_lines(view, view.height - len(body.lines) - MIN_TABLE - 2)
    if view.is_tall:
        body.lines += _charts(view, _chart_rows(view, len(body.lines)))
    body.lines.append(rule(view))
    add_table(view, body, view.height - 1)
    return finish(view, body)


def pool_lines(pool: Json, view: View) -> list[Line]:
    """Return the bar with its figures, the brackets below it, and the key of its colours."""
    lead = f" {_short_label(pool)} {pair(pool['used_bytes'], pool['size_bytes'])} "
    used, whole = pool["used_bytes"], pool["size_bytes"]
    ratio = wording.ratio(used / whole) if used is not None and whole else wording.DASH
    level = view.moment.levels.get(pool["id"], "low")
    width = max(10, view.width - cells(lead) - 8)
    parts = parts_of(pool, view.moment.snapshot["shares"])
    found = segments(parts, whole, width)
    marks = marks_of(pool, view.moment.snapshot["pressure"])
    names = names_in(found, pool, view.moment)
    bar = draw_bar(found, width, marks, view.has_colour, names)
    brackets = draw_brackets(brackets_of(pool, view.moment.snapshot["shares"], found, width), width)
    space, end = Span(" " * cells(lead)), Span(f" {ratio:>6}", f"bold {STYLES[level]}")
    lines: list[Line] = []
    if view.is_tall:
        lines += [(space, *_thresholds(marks, width)), (space, *draw_bar(found, width, marks, view.has_colour))]
    lines += [(Span(lead, "bold"), *bar, end), (space, *brackets)]
    key = legend(parts, view.width - 2, view.has_colour)
    return [*lines, (Span(" "), *key)] if key else lines


def _short_label(pool: Json) -> str:
    return "RAM" if pool["label"] == "System RAM" else clip(str(pool["label"]), 16)


def _thresholds(marks: Sequence[Mark], width: int) -> Line:
    """Return the scale above a bar: the thresholds of the levels, as they are set."""
    row, taken = [Span(" ")] * width, 0
    for one in marks:
        at = mark_cell(one, width)
        percent = f"{one.ratio * 100:.3g}% "
        room = next((text for text in (f"{percent}{one.level} ", percent) if len(text) <= at - taken), "")
        row[at - len(room) : at + 1] = [Span(char, one.level) for char in f"{room}╷"]
        taken = at + 2
    return merge(row)


def _recent_line(view: View) -> Line:
    """Return ten minutes of the use of System RAM, swap, stalls, and the process that grows the fastest."""
    after: list[Span] = []
    for text, style in (_swap(view), _stalls(view), _grower(view)):
        if text and line_cells(after) + cells(text) + 3 <= view.width - 26:
            after.append(Span(f"   {text}", style))
    lead = Span(" 10m ", "muted")
    room = view.width - cells(lead.text) - line_cells(after) - 1
    return (lead, *_colored_spark(view, max(0, min(120, room))), *after)


def _colored_spark(view: View, width: int) -> Line:
    pool = next(iter(view.moment.snapshot["pools"]), None)
    trend = view.moment.trends.get(f"pool.{pool['id']}.used_bytes") if pool else None
    if pool is None or trend is None or width < 8:
        return ()
    whole, end = pool["size_bytes"], view.moment.unix
    values = trend.columns(end - RECENT_SECONDS, end, width)
    blocks = spark(values, whole)
    marks = marks_of(pool, view.moment.snapshot["pressure"])
    styles = [style_at(None if value is None else value / whole, marks) for value in values]
    return merge([Span(block, style) for block, style in zip(blocks, styles, strict=True)])


def _swap(view: View) -> tuple[str, str]:
    swap = view.moment.snapshot["swap"]
    if not swap:
        return "", ""
    if not swap["size_bytes"]:
        return "no swap", "muted"
    return f"swap {pair(swap['used_bytes'], swap['size_bytes'])}", "bold medium" if swap["used_bytes"] else "muted"


def _stalls(view: View) -> tuple[str, str]:
    psi = view.moment.snapshot["psi"]
    if not psi:
        return "", ""
    some = psi["some"]["ratio_10s"]
    full = f" (full {wording.ratio(psi['full']['ratio_10s'])})" if psi.get("full") and some >= 0.0005 else ""
    return f"stall {wording.ratio(some)}{full}", "bold high" if some >= 0.1 else "muted"


def _grower(view: View) -> tuple[str, str]:
    """Return the process with the most growth in the last minute, unless it has ended or returned memory since."""
    living = living_of(view.moment.snapshot)
    sizes = {one["pid"]: one.get("footprint_low_bytes") for one in view.moment.snapshot["processes"]}
    grown = [
        (one["windows"].get("60") or 0, one)
        for one in view.moment.growth.values()
        if living.get(one["pid"], 0.0) == one["start_time"] and not _is_falling(one, sizes.get(one["pid"]))
    ]
    most, process = max(grown, key=lambda pair: pair[0], default=(0, None))
    if process is None or most < 64 << 20:
        return "", ""
    return f"↑ {clip(process['name'] or '?', 15)} {process['pid']} +{short(round(most / 60))}/s", "bold high"


def _is_falling(grown: Json, size: int | None) -> bool:
    """Return True if a process returns memory. `size`: the one now; the growth is up to 15 s older."""
    return grown.get("falling", False) or (size is not None and grown["to_bytes"] - size >= MIN_FALL_BYTES)


def _gpu_lines(view: View, room: int) -> list[Line]:
    """Return a line for each GPU, and for MIG instances if there is room. Without room, the worst GPUs."""
    devices = view.moment.snapshot["devices"]
    width = name_width_of(devices, view)
    shown = devices
    if len(devices) > max(1, room):
        shown = worst_first(devices, view)[: max(1, room - 1)]
    with_mig = len(devices) + sum(len(mig_of(one, view)) for one in devices) <= room
    lines: list[Line] = []
    for device in shown:
        lines.append(gpu_line(device, view, width))
        lines += [mig_line(share, view, width) for share in mig_of(device, view)] if with_mig else []
    if len(shown) < len(devices):
        lines.append((Span(f" {len(devices) - len(shown)} more GPUs, less full: press 2", "muted"),))
    return lines


def _chart_rows(view: View, used: int) -> int:
    """Return the height of the chart: the rows that the processes leave."""
    processes = min(len(view.moment.snapshot["processes"]), view.height // 2)
    return max(MIN_CHART, min(MAX_CHART, view.height - used - processes - (5 if view.is_wide else 5 + EVENT_ROWS)))


def _charts(view: View, rows: int) -> list[Line]:
    """Return the chart of the fullest pool, and the newest events beside or below it."""
    if not view.moment.has_history or not view.moment.snapshot["pools"]:
        return []
    pool = chart_pool(view)
    title = (Span("── ", "muted"), Span(f"{pool['label']}, last 10 min", "bold"), Span(" ", ""))
    head = (*title, Span("─" * max(0, view.width - line_cells(title)), "muted"))
    if not view.is_wide:
        room = EVENT_ROWS if view.height >= 45 else 0
        return [head, *chart_lines(pool, view, view.width, rows), *event_lines(view, view.width)[:room]]
    left = view.width * 3 // 5
    charts = chart_lines(pool, view, left, rows)
    events = event_lines(view, view.width - left - 2)[: len(charts)]
    lines: list[Line] = [head]
    for at, line in enumerate(charts):
        space = Span(" " * max(0, left - line_cells(line)) + "│", "muted")
        lines.append((*line, space, *(events[at] if at < len(events) else ())))
    return lines


def chart_pool(view: View) -> Json:
    """Return the pool with the highest level, then the highest use; of equals the first."""
    snapshot = view.moment.snapshot
    ranks = {one["target"]: (LEVELS.index(one["level"]), one["ratio"]) for one in snapshot["pressure"]}
    found: Json = max(snapshot["pools"], key=lambda pool: ranks.get(pool["id"], (-1, 0.0)))
    return found
