"""Page 1: the landscape of memory through time, what GPUs can allocate, and the processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from memwatch.cli.terminal.figures import pair, percent, short
from memwatch.cli.terminal.frame import Body, Frame, View, finish, header_of, notice_lines, rule
from memwatch.cli.terminal.gpus import (
    choose_order,
    device_line,
    name_width_of,
    pool_of,
    rank_maps,
    sensors_of,
    worst_level,
)
from memwatch.cli.terminal.history import event_lines
from memwatch.cli.terminal.moment import STYLES, living_of
from memwatch.cli.terminal.past import RECENT_SECONDS, build_past
from memwatch.cli.terminal.processes import add_table
from memwatch.cli.terminal.stacks import Ink, draw_bar, marks_of
from memwatch.cli.terminal.style import Line, Span, cells, clip, line_cells
from memwatch.cli.terminal.towers import Scene, draw_scene
from memwatch.core.model import RAM_LABEL, Absent, Bytes, Thresholds, known_or
from memwatch.core.processes.growth import MIN_FALL_BYTES
from memwatch.core.wire import Json
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.containment import Growing
from memwatch.reporting.render.memory_map import MemoryMap, build_limit_maps, build_maps, split_gpus
from memwatch.reporting.render.past import Past
from memwatch.reporting.render.summary import find_worst

# Lines that always remain for the table: its header and some rows.
MIN_TABLE = 6
# With fewer rows than these there is a bar for each pool.
MIN_PICTURE, MAX_PICTURE, EVENT_ROWS, EVENTS_WIDTH = 6, 36, 5, 52
# Less growth in a minute is not named.
MIN_GROWTH = 64 << 20
GROWTH_SECONDS = 60.0


def overview(view: View) -> Frame:
    body = Body([header_of(view), *notice_lines(view)], [])
    recent = _recent_line(view)
    gpus, others = split_gpus(_build_maps(view))
    devices = _device_lines(view, {one.whole.id for one in gpus})
    fixed = len(body.lines) + 1 + len(devices) + 2
    room = view.height - fixed - _table_rows(view)
    body.lines += _picture(view, gpus, others, room)
    body.lines += [recent, *devices]
    if view.height - len(body.lines) - 2 - EVENT_ROWS >= _table_rows(view) and not view.is_wide:
        body.lines += event_lines(view, view.width)[:EVENT_ROWS]
    body.lines.append(rule(view))
    add_table(view, body, view.height - 1)
    return finish(view, body)


def _table_rows(view: View) -> int:
    """Return the lines of the table: all processes if these are few, a third of the screen if they are many."""
    return max(min(MIN_TABLE, view.height // 3), min(len(view.moment.snapshot.processes) + 1, view.height // 3))


def _picture(view: View, gpus: Sequence[MemoryMap], others: Sequence[MemoryMap], rows: int) -> list[Line]:
    """Return the landscape in at most these rows, with events beside it in a wide terminal.

    `gpus`: those that are many; the other pools are bars above them then.
    """
    bars = [_bar_line(one, view) for one in others] if gpus else []
    beside = EVENTS_WIDTH if view.is_wide and view.moment.has_history else 0
    shown = tuple(gpus or others)
    room = min(MAX_PICTURE, rows - len(bars) - int(len(shown) > 1))
    if room < MIN_PICTURE:
        return _bars(view, (*others, *gpus), max(1, rows))
    scene = _build_scene(shown, view)
    lines = [*bars, *draw_scene(scene, view.width - beside, room)]
    if not beside:
        return lines
    events = event_lines(view, beside - 2)[: len(lines)]
    width = view.width - beside
    return [
        (
            *line,
            Span(" " * max(0, width - line_cells(line)) + "│", "muted"),
            *(events[at] if at < len(events) else ()),
        )
        for at, line in enumerate(lines)
    ]


def _bars(view: View, maps: Sequence[MemoryMap], rows: int) -> list[Line]:
    """Return a line for each pool, the fullest ones first if there is no room for all."""
    if len(maps) <= rows:
        return [_bar_line(one, view) for one in maps]
    ranked = rank_maps(maps, view)[: max(1, rows - 1)]
    left = wording.count(len(maps) - len(ranked), "more pool")
    return [*(_bar_line(one, view) for one in ranked), *[(Span(f" {left}, less full: press 2"),)][: rows - 1]]


def _build_maps(view: View) -> tuple[MemoryMap, ...]:
    snapshot = view.moment.snapshot
    thresholds = {one.target: one.thresholds for one in snapshot.pressure if isinstance(one.thresholds, Thresholds)}
    return (*build_maps(snapshot, thresholds), *build_limit_maps(snapshot, thresholds))


def _build_scene(maps: Sequence[MemoryMap], view: View) -> Scene:
    """Return what the landscape of these pools shows: the worst ones first if there are more than fit."""
    snapshot = view.moment.snapshot
    devices = {pool.id: one for one in snapshot.devices if (pool := pool_of(one, view)) is not None}
    return Scene(
        maps=choose_order(maps, view),
        ink=Ink(view.has_colour, view.is_ascii),
        build_past=lambda one, columns: _build_past(one, view, columns),
        levels={
            **view.moment.levels,
            **{one.whole.id: worst_level(one.pool or one.share, view) for one in maps if one.pool or one.share},
        },
        marks={
            one.whole.id: marks_of(place, snapshot.pressure) for one in maps if (place := one.pool or one.share)
        },
        names={pool: device.id.upper() for pool, device in devices.items()},
        notes={pool: sensors_of(device, short_form=True).strip() for pool, device in devices.items()},
        growing=_growing(view),
    )


def _build_past(one: MemoryMap, view: View, columns: int) -> Past | None:
    """Return the last ten minutes of a pool, with the time at which it is full if it is judged by that now."""
    moment = view.moment
    if one.pool is None:
        return None
    verdict = next((found for found in moment.snapshot.pressure if found.target == one.pool.id), None)
    left = Absent.NOT_AVAILABLE if verdict is None else verdict.seconds_to_full
    is_now = moment.is_current and view.state.paused_at is None
    full_at = moment.unix + left if is_now and isinstance(left, float) else None
    span = moment.unix - RECENT_SECONDS, moment.unix
    return build_past(one.pool, moment.snapshot, moment.trends, span, moment.events, full_at, columns)


def _bar_line(one: MemoryMap, view: View) -> Line:
    """Return a pool in one line: its figures and its bar."""
    whole, place = one.whole, one.pool or one.share
    label = "RAM" if whole.label == RAM_LABEL else clip(whole.label, 16)
    lead = f" {label} {pair(whole.used_bytes, whole.size_bytes)} "
    level = view.moment.levels.get(whole.id, "low")
    width = max(4, view.width - cells(lead) - 8)
    marks = marks_of(place, view.moment.snapshot.pressure) if place is not None else ()
    bar = draw_bar(one.segments, width, marks, view.has_colour, view.moment.has_current_processes)
    ratio = percent(whole.used_bytes, whole.size_bytes)
    return (Span(lead, "bold"), *bar, Span(f" {ratio:>6}", f"bold {STYLES[level]}"))


def _recent_line(view: View) -> Line:
    """Return swap, stalls, and the process that grows the fastest."""
    found: list[Span] = []
    for text, style in (_swap(view), _stalls(view), _grower(view)):
        if text and line_cells(found) + cells(text) + 3 <= view.width:
            found.append(Span(f"{'   ' if found else ' '}{text}", style))
    return tuple(found)


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
    most, process = _find_growth(view)
    if process is None:
        return "", ""
    pid = process["pid"]
    titles = {one.pid: one.title for one in view.moment.snapshot.processes}
    return f"↑ {clip(titles.get(pid) or '?', 15)} {pid} +{short(round(most / GROWTH_SECONDS))}/s", "bold high"


def _find_growth(view: View) -> tuple[int, Json | None]:
    living = living_of(view.moment.snapshot)
    sizes = {one.pid: one.footprint_low_bytes for one in view.moment.snapshot.processes}
    grown = [
        (one["windows"].get("60") or 0, one)
        for one in view.moment.growth.values()
        if _is_living(one, living) and not _is_falling(one, sizes.get(one["pid"], Absent.NOT_AVAILABLE))
    ]
    most, process = max(grown, key=lambda pair: pair[0], default=(0, None))
    return (0, None) if most < MIN_GROWTH else (most, process)


def _growing(view: View) -> Growing | None:
    """Return the growth that takes the colour of the level, at a level above OK."""
    worst = find_worst(view.moment.snapshot)
    most, process = _find_growth(view)
    if worst is None or process is None or worst.level.word == "low":
        return None
    return Growing(worst.target, process["pid"], worst.level.word, most, GROWTH_SECONDS)


def _is_living(grown: Json, living: Mapping[int, float | Absent]) -> bool:
    start = living.get(grown["pid"], 0.0)
    return bool(known_or(start, None) == grown["start_time"])


def _is_falling(grown: Json, size: Bytes) -> bool:
    """Return True if a process returns memory. `size`: the one now; the growth is up to 15 s older."""
    return bool(grown.get("falling")) or (isinstance(size, int) and grown["to_bytes"] - size >= MIN_FALL_BYTES)


def _device_lines(view: View, drawn: Collection[str]) -> list[Line]:
    """Return what each GPU can allocate, with its sensors, without those of the pools in `drawn`."""
    devices = view.moment.snapshot.devices
    width = name_width_of(devices, view)
    shown = [one for one in devices if (pool := pool_of(one, view)) is None or pool.id not in drawn]
    most = max(1, view.height // 8)
    lines = [device_line(one, view, width) for one in shown[:most]]
    if len(shown) > most:
        lines.append((Span(f" {len(shown) - most} more GPUs: press 2", "muted"),))
    return lines
