"""Page 1: the map of System RAM, one line per GPU, and the processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwatch.cli.terminal.figures import pair, percent, short, spark
from memwatch.cli.terminal.frame import Body, Frame, View, finish, header_of, notice_lines, rule
from memwatch.cli.terminal.gpus import (
    gpu_line,
    mig_line,
    mig_of,
    name_width_of,
    worst_first,
)
from memwatch.cli.terminal.history import chart_lines, event_lines
from memwatch.cli.terminal.memory_map import (
    draw_bar,
    draw_brackets,
    legend,
    mark_cell,
    marks_of,
    merge,
    style_at,
)
from memwatch.cli.terminal.moment import STYLES, Json, living_of
from memwatch.cli.terminal.past import RECENT_SECONDS
from memwatch.cli.terminal.processes import add_table
from memwatch.cli.terminal.style import Line, Span, cells, clip, line_cells
from memwatch.core.model import Absent, Bytes, Device, Pool, PoolKind
from memwatch.core.processes.growth import MIN_FALL_BYTES
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.memory_map import Mark, build_map

# Lines that always remain for the table: its header and some rows.
MIN_TABLE = 6
MIN_CHART, MAX_CHART, EVENT_ROWS = 6, 14, 5


def overview(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view)], [])
    snapshot = view.moment.snapshot
    for pool in snapshot.pools:
        if pool.kind is PoolKind.SYSTEM_RAM:
            body.lines += pool_lines(pool, view)
    body.lines.append(_recent_line(view))
    body.lines += _gpu_lines(view, view.height - len(body.lines) - MIN_TABLE - 2)
    if view.is_tall:
        body.lines += _charts(view, _chart_rows(view, len(body.lines)))
    body.lines.append(rule(view))
    add_table(view, body, view.height - 1)
    return finish(view, body)


def pool_lines(pool: Pool, view: View) -> list[Line]:
    """Return the bar with its figures, the brackets below it, and the key of its colours."""
    lead = f" {_short_label(pool)} {pair(pool.used_bytes, pool.size_bytes)} "
    ratio = percent(pool.used_bytes, pool.size_bytes)
    level = view.moment.levels.get(pool.id, "low")
    width = max(10, view.width - cells(lead) - 8)
    drawn = build_map(pool, view.moment.snapshot)
    marks = marks_of(pool, view.moment.snapshot.pressure)
    bar = draw_bar(drawn.segments, width, marks, view.has_colour, view.moment.has_current_processes)
    space, end = Span(" " * cells(lead)), Span(f" {ratio:>6}", f"bold {STYLES[level]}")
    lines: list[Line] = []
    if view.is_tall:
        lines += [
            (space, *_thresholds(marks, width)),
            (space, *draw_bar(drawn.segments, width, marks, view.has_colour)),
        ]
    lines += [(Span(lead, "bold"), *bar, end), (space, *draw_brackets(drawn, width))]
    key = legend(drawn.parts, view.width - 2, view.has_colour)
    return [*lines, (Span(" "), *key)] if key else lines


def _short_label(pool: Pool) -> str:
    return "RAM" if pool.label == "System RAM" else clip(pool.label, 16)


def _thresholds(marks: Sequence[Mark], width: int) -> Line:
    """Return the scale above a bar: the thresholds of the levels, as they are set."""
    row, taken = [Span(" ")] * width, 0
    for one in marks:
        at = mark_cell(one, width)
        figure = f"{one.threshold * 100:.3g}% "
        room = next((text for text in (f"{figure}{one.level} ", figure) if len(text) <= at - taken), "")
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
    pool = next(iter(view.moment.snapshot.pools), None)
    trend = view.moment.trends.get(f"pool.{pool.id}.used_bytes") if pool else None
    if pool is None or trend is None or width < 8:
        return ()
    whole, end = pool.size_bytes, view.moment.unix
    values = trend.columns(end - RECENT_SECONDS, end, width)
    blocks = spark(values, whole)
    marks = marks_of(pool, view.moment.snapshot.pressure)
    styles = [style_at(None if value is None else value / whole, marks) for value in values]
    return merge([Span(block, style) for block, style in zip(blocks, styles, strict=True)])


def _swap(view: View) -> tuple[str, str]:
    swap = view.moment.snapshot.swap
    if isinstance(swap, Absent):
        return "", ""
    if not swap.size_bytes:
        return "no swap", "muted"
    return f"swap {pair(swap.used_bytes, swap.size_bytes)}", "bold medium" if swap.used_bytes else "muted"


def _stalls(view: View) -> tuple[str, str]:
    psi = view.moment.snapshot.psi
    if isinstance(psi, Absent):
        return "", ""
    some = psi.some.ratio_10s
    full = ""
    if not isinstance(psi.full, Absent) and some >= 0.0005:
        full = f" (full {wording.ratio(psi.full.ratio_10s)})"
    return f"stall {wording.ratio(some)}{full}", "bold high" if some >= 0.1 else "muted"


def _grower(view: View) -> tuple[str, str]:
    """Return the process with the most growth in the last minute, unless it has ended or returned memory since."""
    living = living_of(view.moment.snapshot)
    sizes = {one.pid: one.footprint_low_bytes for one in view.moment.snapshot.processes}
    grown = [
        (one["windows"].get("60") or 0, one)
        for one in view.moment.growth.values()
        if _is_living(one, living) and not _is_falling(one, sizes.get(one["pid"], Absent.NOT_AVAILABLE))
    ]
    most, process = max(grown, key=lambda pair: pair[0], default=(0, None))
    if process is None or most < 64 << 20:
        return "", ""
    return f"↑ {clip(process['name'] or '?', 15)} {process['pid']} +{short(round(most / 60))}/s", "bold high"


def _is_living(grown: Json, living: Mapping[int, float | Absent]) -> bool:
    start = living.get(grown["pid"], 0.0)
    return bool((None if isinstance(start, Absent) else start) == grown["start_time"])


def _is_falling(grown: Json, size: Bytes) -> bool:
    """Return True if a process returns memory. `size`: the one now; the growth is up to 15 s older."""
    return bool(grown.get("falling")) or (isinstance(size, int) and grown["to_bytes"] - size >= MIN_FALL_BYTES)


def _gpu_lines(view: View, room: int) -> list[Line]:
    """Return a line for each GPU, and for MIG instances if there is room. Without room, the worst GPUs."""
    devices = view.moment.snapshot.devices
    width = name_width_of(devices, view)
    shown: Sequence[Device] = devices
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
    processes = min(len(view.moment.snapshot.processes), view.height // 2)
    return max(MIN_CHART, min(MAX_CHART, view.height - used - processes - (5 if view.is_wide else 5 + EVENT_ROWS)))


def _charts(view: View, rows: int) -> list[Line]:
    """Return the chart of the fullest pool, and the newest events beside or below it."""
    if not view.moment.has_history or not view.moment.snapshot.pools:
        return []
    pool = chart_pool(view)
    title = (Span("── ", "muted"), Span(f"{pool.label}, last 10 min", "bold"), Span(" ", ""))
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


def chart_pool(view: View) -> Pool:
    """Return the pool with the highest level, then the highest use; of equals the first."""
    snapshot = view.moment.snapshot
    ranks = {one.target: (int(one.level), one.ratio) for one in snapshot.pressure}
    return max(snapshot.pools, key=lambda pool: ranks.get(pool.id, (-1, 0.0)))
