"""The landscape of memory in cells: pools as towers on one ground, at one number of bytes per row.

Bytes go up, time goes to the left, containment goes to the right, as in `render.tower`, which has the order of the
bytes, the scale and the spreading of words. This module has the places of the cells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from memwatch.cli.charset import to_ascii
from memwatch.cli.terminal.figures import pair, percent, short
from memwatch.cli.terminal.moment import LEVELS, MARKS, STYLES
from memwatch.cli.terminal.stacks import UNKNOWN, Bytes, Ink, Look, draw_column, eighths_of, look_of, merge, shade
from memwatch.cli.terminal.style import Line, Span, cells, clip, pad
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.containment import Growing, Node, build_nodes, count_columns
from memwatch.reporting.render.drawing import TIME_FORMS, TimeAxis, list_steps, list_times, spread
from memwatch.reporting.render.memory_map import Mark, MemoryMap
from memwatch.reporting.render.past import Past
from memwatch.reporting.render.tower import MAX_CELLS, MAX_NAMED_POOLS, choose_scale

ABOVE_OK = LEVELS[1:]
# A pool that is lower has words instead: it would be a sliver.
MIN_ROWS = 1.0
AXIS, MARKS_WIDTH, GAP = 7, 6, 1
# Widths of a cell with a past, of words beside a tower, of a cell with these, and of the narrowest.
MIN_TIMED, MAX_GUTTER, MIN_NAMED, MIN_NARROW = 64, 20, 36, 4
# Of the room that words leave.
PAST_PART = 0.37
# A name that does not fit is cut, but not to less than this.
MIN_CLIPPED = 8
# Rows above and below the bytes.
EXTRA_ROWS = 2
# Between two times below a past, and their forms by the unit of the step.
TIME_CELLS, PATTERNS = 3.0, {"seconds": "%H:%M:%S", "minutes": "%H:%M", "day": "%m-%d"}
# Words are in rows of which at most this part is not theirs: lengths stay right within half a row.
MAX_PAINTED = 0.25


class Scene(Struct, frozen=True):
    """The contents of a picture. `levels` are by pool and by MIG instance.

    `marks` and `notes` (words below a tower) are by pool. `build_past`: the past of a pool for a number of columns,
    None without one. `names`: short names of pools.
    """

    maps: tuple[MemoryMap, ...]
    ink: Ink
    build_past: Callable[[MemoryMap, int], Past | None]
    levels: Mapping[str, str]
    marks: Mapping[str, Sequence[Mark]]
    names: Mapping[str, str]
    notes: Mapping[str, str]
    growing: Growing | None = None

    def spell(self, text: str) -> str:
        return to_ascii(text) if self.ink.is_ascii else text


@lru_cache(maxsize=2048)
def _split(text: str, style: str, on: str) -> tuple[Span, ...]:
    """Return the cells of an ASCII text. Most texts of a picture are those of the picture before it."""
    return tuple(Span(char, style, on) for char in text)


class Canvas:
    """Cells of a picture, by row from the top."""

    def __init__(self, width: int, rows: int) -> None:
        self.width: int = width
        self.rows: int = rows
        self._cells = [[Span(" ")] * width for _ in range(rows)]

    def put(self, x: int, row: int, text: str, style: str = "", on: str = "") -> None:
        """Write a text, cut at the right edge. A wide character takes its second cell as an empty text."""
        if not 0 <= row < self.rows:
            return
        if text.isascii():
            text = text[: max(0, self.width - x)]
            self._cells[row][x : x + len(text)] = _split(text, style, on)
            return
        for char in text:
            wide = cells(char)
            if not 0 <= x <= self.width - wide:
                return
            if wide == 0:
                self._cells[row][x - 1] = self._cells[row][x - 1]._replace(text=self._cells[row][x - 1].text + char)
                continue
            self._cells[row][x] = Span(char, style, on)
            if wide == 2:
                self._cells[row][x + 1] = Span("", style, on)
            x += wide

    def fill(self, x: int, end: int, top: int, column: Sequence[Span]) -> None:
        """Draw a column of cells from the row `top` on in all columns up to `end`."""
        for row, span in enumerate(column, top):
            self._cells[row][x:end] = [span] * (end - x)

    def lines(self) -> list[Line]:
        return [merge(row) for row in self._cells]


class Area(NamedTuple):
    """Cells of a pool: `height` rows, which may be parts, above the row `ground`."""

    left: int
    right: int
    ground: int
    height: float


def draw_scene(scene: Scene, width: int, rows: int) -> list[Line]:
    """Return `rows` lines with the pools that have a row or more, and a line of words for the others."""
    shown = [one for one in scene.maps if one.whole.size_bytes]
    scale = choose_scale(shown, rows - EXTRA_ROWS)
    high = [one for one in shown if one.whole.size_bytes * scale >= MIN_ROWS]
    low = [one for one in scene.maps if one not in high]
    if not high:
        return _sliver_lines(low, scene, width)
    is_named = len(high) <= MAX_NAMED_POOLS and width // len(high) >= MIN_NAMED
    lines = _draw_named(high, scene, width, rows, scale) if is_named else _draw_many(high, scene, width, rows)
    return [*lines, *_sliver_lines(low, scene, width)]


def _sliver_lines(maps: Sequence[MemoryMap], scene: Scene, width: int) -> list[Line]:
    """Say what pools hold that are thinner than a row."""
    if not maps:
        return []
    texts = [f"{one.whole.label} {pair(one.whole.used_bytes, one.whole.size_bytes)}" for one in maps]
    words = ", ".join(texts) if len(texts) < 4 else ", ".join((*texts[:3], f"{len(texts) - 3} more"))
    return [(Span(clip(scene.spell(f" thinner than a row: {words}"), width), "muted"),)]


def _draw_named(maps: Sequence[MemoryMap], scene: Scene, width: int, rows: int, scale: float) -> list[Line]:
    """Draw few pools: each with its bytes, its past, its thresholds, and words beside it."""
    count = len(maps)
    before = int((width // count - AXIS - _gutter_of(width // count) - MARKS_WIDTH) * PAST_PART)
    has_room = width // count >= MIN_TIMED
    pasts = [scene.build_past(one, before) if has_room else None for one in maps]
    has_times = any(pasts)
    canvas = Canvas(width, rows if has_times else rows - 1)
    for number, (one, past) in enumerate(zip(maps, pasts, strict=True)):
        left, right = width * number // count, width * (number + 1) // count
        cell = Area(left, right - GAP * (number + 1 < count), canvas.rows - has_times, one.whole.size_bytes * scale)
        _draw_cell(canvas, one, scene, cell, past, before)
    return canvas.lines()


def _gutter_of(width: int) -> int:
    return min(MAX_GUTTER, int(width * 0.36))


def _draw_cell(canvas: Canvas, one: MemoryMap, scene: Scene, cell: Area, past: Past | None, before: int) -> None:
    """Draw a pool, with `before` columns of its past."""
    left, right, ground, height = cell
    top = ground - rows_of(height)
    x, end = left + AXIS, right - _gutter_of(right - left)
    if past is not None:
        draw_past(canvas, past, one.whole.size_bytes, scene.ink, Area(x, x + before, ground, height))
        _draw_marks(canvas, scene.marks.get(one.whole.id, ()), x + before, ground, height, scene)
        if past.full_at is not None and scene.levels.get(one.whole.id) == "critical":
            words = f"full ~{wording.clock(past.full_at)[:8]}"
            canvas.put(x + before + 2, ground, words, "bold critical")
        x += before + MARKS_WIDTH
    draw_axis(canvas, one.whole.size_bytes, left, ground, height)
    tower = Area(x, end, ground, height)
    notes = draw_tower(canvas, one, tower, scene, is_named=True)
    _write_title(canvas, one, scene, x, top - 1, right)
    _write_beside(canvas, notes, tower, right, scene)


def rows_of(height: float) -> int:
    """Return the rows that a height takes, a part of one counted whole. A billionth of a row is rounding."""
    return max(1, ceil(height - 1e-9))


def _write_title(canvas: Canvas, one: MemoryMap, scene: Scene, x: int, row: int, right: int) -> None:
    level = scene.levels.get(one.whole.id, "")
    used, size = one.whole.used_bytes, one.whole.size_bytes
    figures = pair(used, size) if isinstance(used, int) else f"{short(size)}, {wording.absent(used)}"
    ratio = percent(used, size) if isinstance(used, int) else ""
    style = f"bold {STYLES[level]}" if level in ABOVE_OK else "bold"
    tail = f" {figures} {ratio}".rstrip()
    label = clip(one.whole.label, max(3, right - x - cells(tail)))
    label = scene.spell(label)
    canvas.put(x, row, label, "bold")
    canvas.put(x + cells(label), row, scene.spell(tail), style)


def draw_tower(
    canvas: Canvas, one: MemoryMap, tower: Area, scene: Scene, is_named: bool
) -> list[tuple[float, Node]]:
    """Draw what a pool holds. Return the nodes without words inside, each with its middle in rows below the top."""
    height = tower.height
    nodes = build_nodes(one, scene.growing, scene.levels)
    rows = rows_of(height)
    top = tower.ground - rows
    if not nodes:
        canvas.fill(
            tower.left, tower.right, top, draw_column((Bytes(UNKNOWN, eighths_of(height)),), rows, scene.ink)
        )
        return []
    depth = count_columns(nodes)
    edges = [tower.left + (tower.right - tower.left) * number // depth for number in range(depth + 1)]
    inks: list[list[Look]] = []
    for number in range(depth):
        stack = shade(
            [found for node in _list_column(nodes, number) for found in _list_looks(node, number, height)]
        )
        canvas.fill(edges[number], edges[number + 1], top, draw_column(stack, rows, scene.ink))
        inks.append([_look_at(stack, rows - 1 - row) for row in range(rows)])
    beside = []
    for node, number in _walk(nodes, 0):
        end = edges[number + 1] if node.inside else tower.right
        if number and not scene.ink.has_parts:
            _draw_edge(canvas, node, edges[number], tower, scene)
        if not _write_inside(canvas, node, inks[number], edges[number], end, number, tower, scene, is_named):
            beside.append((rows - height * (node.start + node.part / 2), node))
    return beside


def _draw_edge(canvas: Canvas, node: Node, left: int, tower: Area, scene: Scene) -> None:
    """Draw the edge of bytes inside others where both may have one character."""
    first, last = int(node.start * tower.height + 0.5), int((node.start + node.part) * tower.height + 0.5)
    for row in range(first, last):
        canvas.put(left, tower.ground - 1 - row, scene.spell("│"), "muted")


def _list_column(nodes: Sequence[Node], number: int) -> Iterator[Node]:
    """Yield the nodes whose boxes are in a column: those of this depth, and those without parts before it."""
    for node in nodes:
        if number and node.inside:
            yield from _list_column(node.inside, number - 1)
        else:
            yield node


def _list_looks(node: Node, number: int, height: float) -> Iterator[tuple[Look, float]]:
    kind = f"{node.kind}-family" if node.inside and not number and node.kind != "slice" else node.kind
    end = node.start + node.part
    if node.grown:
        yield look_of(kind), (end - node.part * node.grown) * height
        kind = f"level-{node.level}"
    yield look_of(kind), end * height


def _look_at(stack: Sequence[Bytes], row: int) -> Look:
    return next((one.look for one in stack if one.end >= 8 * row + 4), UNKNOWN)


def _walk(nodes: Sequence[Node], depth: int) -> Iterator[tuple[Node, int]]:
    for node in nodes:
        yield node, depth
        yield from _walk(node.inside, depth + 1)


def _write_inside(
    canvas: Canvas,
    node: Node,
    looks: Sequence[Look],
    left: int,
    right: int,
    depth: int,
    tower: Area,
    scene: Scene,
    is_named: bool,
) -> bool:
    """Write name and figure into the rows of which a box fills half or more. False if there is no room."""
    rows, room = len(looks), right - left - 1
    start, end = node.start * tower.height, (node.start + node.part) * tower.height
    first, last = rows - int(end + MAX_PAINTED), rows - ceil(start - MAX_PAINTED)
    count = last - first
    name, figure = scene.spell(node.name), short(node.size_bytes)
    if node.kind == "slice":
        mark = scene.spell(MARKS[node.level]) if node.level in ABOVE_OK else ""
        name = f"{mark}{name if len(mark) + len(name) <= room else name.rpartition(' ')[2]}"
    if count < 1:
        return False
    if cells(name) > room and (count > 1 or not is_named):
        least = MIN_CLIPPED if is_named else MIN_NARROW - 1
        name = scene.spell(clip(name, room)) if room >= least else name
    lines: list[str] = []
    if cells(name) + cells(figure) + 1 <= room and (count == 1 or not node.details):
        lines = [f"{name} {figure}"]
    elif count > 1 and cells(name) <= room:
        lines = [one for one in (name, figure, *map(scene.spell, node.details)) if cells(one) <= room][:count]
    elif not is_named:
        lines = [one for one in (name, figure) if cells(one) <= room][:count]
    row = tower.ground - rows + first
    for number, text in enumerate(lines):
        look = looks[first + number]
        is_solid = scene.ink.has_parts and look.char == "█"
        # Hatching is in dim colours, in which words are hard to read.
        colour = look.colour if look.char == "█" else ""
        style = colour if number else f"{colour} bold".lstrip()
        if is_solid:
            style = look.ink if number else f"{look.ink} bold"
            canvas.put(left, row + number, pad(f" {text}", right - left), style, look.colour)
        else:
            after = " " if cells(text) + 2 <= right - left else ""
            at, lead = (left + 1, "") if depth else (left, " ")
            canvas.put(at, row + number, f"{lead}{text}{after}", style)
    return bool(lines)


def _write_beside(
    canvas: Canvas, notes: Sequence[tuple[float, Node]], tower: Area, right: int, scene: Scene
) -> None:
    """Write the names of nodes without room in the order of the bytes, each as near to its own as possible."""
    rows = rows_of(tower.height)
    top, x = tower.ground - rows, tower.right + 1
    kept = sorted(sorted(notes, key=lambda note: -note[1].size_bytes)[:rows], key=lambda note: note[0])
    places = spread([y - 0.5 for y, _ in kept], 1.0, 0.0, rows - 1.0)
    for (_, node), at in zip(kept, places, strict=True):
        row = top + int(at + 0.5)
        look, figure = look_of(node.kind), short(node.size_bytes)
        room = right - x - 3 - len(figure)
        if room < 3:
            continue
        is_block = look.char == "█" and scene.ink.has_parts
        name = scene.spell(clip(node.name, room))
        canvas.put(x, row, "■" if is_block else scene.ink.char_of(look), look.colour)
        canvas.put(x + 2, row, name)
        canvas.put(x + 3 + cells(name), row, figure, "bold")


def draw_axis(canvas: Canvas, size: int, left: int, ground: int, height: float) -> None:
    """Write the size of the pool at its top, and round bytes below it."""
    rows = rows_of(height)
    canvas.put(left, ground - rows, f"{short(size):>{AXIS - 1}}", "muted")
    for step in list_steps(float(size), "bytes", max(1.0, height / 2.0))[1:]:
        row = ground - int(height * step / size + 0.5)
        if row > ground - rows + 1:
            canvas.put(left, row, f"{short(int(step)).replace('.0', ''):>{AXIS - 1}}", "muted")


def _draw_marks(canvas: Canvas, marks: Sequence[Mark], x: int, ground: int, height: float, scene: Scene) -> None:
    """Write the thresholds of the levels where they begin; of two in a row the higher one."""
    for one in marks:
        row = ground - min(rows_of(height), int(one.position * height) + 1)
        text = f"{one.threshold * 100:.3g}%"
        marked = scene.spell(f"{MARKS[one.level]}{text}")
        chosen = marked if cells(marked) < MARKS_WIDTH else text
        canvas.put(x, row, f"{chosen:>{MARKS_WIDTH - 1}} ", one.level)


def draw_past(canvas: Canvas, past: Past, size: int, ink: Ink, area: Area) -> None:
    """Draw the layers of a pool over time, the levels and kills above them, and clock times below."""
    rows, count = rows_of(area.height), area.right - area.left
    top = area.ground - rows
    length = (past.end - past.start) / count
    for number, sizes in enumerate(_sample(past, count)):
        if sizes is None:
            continue
        ends, total = [], 0.0
        for layer, value in zip(past.layers, sizes, strict=True):
            total += value
            ends.append(Bytes(look_of(layer.kind), eighths_of(min(1.0, total / size) * area.height)))
        canvas.fill(area.left + number, area.left + number + 1, top, draw_column(tuple(ends), rows, ink))
        level = _level_at(past, past.start + length * number, past.start + length * (number + 1))
        canvas.put(area.left + number, top - 1, _strip_char(level, ink), STYLES[level])
    for unix, _ in past.flags:
        at = min(count - 1, max(0, int((unix - past.start) / length)))
        canvas.put(area.left + at, top - 1, "x" if ink.is_ascii else "✗", "bold critical reverse")
    write_times(canvas, past.start, past.end, area)


def _strip_char(level: str, ink: Ink) -> str:
    if ink.has_parts:
        return "▄"
    return {"low": "_", "medium": "m", "high": "h", "critical": "C"}[level]


def _sample(past: Past, count: int) -> list[tuple[float, ...] | None]:
    """Return the layers in each of `count` columns, at the time in it at which most is used, None without data.

    A column between two samples repeats the one before it.
    """
    found: list[tuple[float, ...] | None] = [None] * count
    most, last = -1.0, -1
    length = (past.end - past.start) / count
    apart = past.times[-1] - past.times[0] if past.times else 0.0
    reach = 2.5 * apart / max(1, len(past.times) - 1)
    for number, unix in enumerate(past.times):
        sizes = tuple(size for layer in past.layers if (size := layer.sizes[number]) is not None)
        if len(sizes) < len(past.layers) or not past.start <= unix <= past.end:
            continue
        at = min(count - 1, int((unix - past.start) / length))
        if 0 <= last < at and (at - last) * length <= max(reach, 2 * length):
            found[last + 1 : at] = [found[last]] * (at - last - 1)
        used = sum(sizes[:-1])
        if at != last or used > most:
            found[at], most, last = sizes, used, at
    if 0 <= last < count and (count - 1 - last) * length <= reach:
        found[last + 1 :] = [found[last]] * (count - 1 - last)
    return found


def _level_at(past: Past, start: float, end: float) -> str:
    found = [word for began, ended, word in past.levels if began < end and ended > start]
    return max(found, key=list(STYLES).index, default="low")


def write_times(canvas: Canvas, start: float, end: float, area: Area) -> None:
    """Write round local times below the past, as many as there is room for, without a cut one."""
    width, offset = area.right - area.left, time.localtime(end).tm_gmtoff
    labels = {unit: float(len(form)) for unit, form in TIME_FORMS.items()}
    for mark in list_times(TimeAxis(start + offset, end + offset), width, labels, TIME_CELLS):
        text = time.strftime(PATTERNS[mark.unit], time.gmtime(mark.unix))
        canvas.put(area.left + int(mark.at * width - len(text) / 2 + 0.5), area.ground, text, "muted")


def _draw_many(maps: Sequence[MemoryMap], scene: Scene, width: int, rows: int) -> list[Line]:
    """Draw many pools side by side, with their names and use above them and their sensors below."""
    room = (width - AXIS) // MIN_NARROW
    shown = maps[: min(MAX_CELLS, room)]
    cell = (width - AXIS) // len(shown)
    has_two = cell - GAP < 13
    has_notes = all(cells(scene.notes.get(one.whole.id, "")) <= cell - GAP for one in shown)
    canvas = Canvas(width, rows)
    ground = rows - has_notes
    scale = choose_scale(shown, ground - 1 - has_two)
    for number, one in enumerate(shown):
        left, height = AXIS + number * cell, one.whole.size_bytes * scale
        right = left + cell - GAP
        top = ground - rows_of(height)
        if not number:
            draw_axis(canvas, one.whole.size_bytes, 0, ground, height)
        draw_tower(canvas, one, Area(left, right, ground, height), scene, is_named=False)
        _write_head(canvas, one, scene, left, right, top - 1, has_two)
        note = scene.spell(scene.notes.get(one.whole.id, ""))
        if has_notes:
            canvas.put(left, ground, note, "muted")
    lines = canvas.lines()
    if len(shown) < len(maps):
        lines.append((Span(f" {len(maps) - len(shown)} more, less full: press 2", "muted"),))
    return lines


def _write_head(
    canvas: Canvas, one: MemoryMap, scene: Scene, left: int, right: int, row: int, has_two: bool
) -> None:
    level = scene.levels.get(one.whole.id, "")
    room = right - left + GAP
    used = one.whole.used_bytes
    ratio = percent(used, one.whole.size_bytes) if isinstance(used, int) else wording.DASH
    ratio = next((text for text in (ratio, f"{ratio.partition('.')[0]}%") if len(text) < room), ratio)
    name = scene.names.get(one.whole.id, one.whole.label)
    name = name if cells(name) < room else clip(name.removeprefix("GPU"), room - 1)
    mark = scene.spell(MARKS.get(level, ""))
    style = f"bold {STYLES[level]}" if level in ABOVE_OK else "bold"
    if has_two:
        canvas.put(left, row - 1, name, "bold")
        if cells(name) + 2 < room:
            canvas.put(left + cells(name) + 1, row - 1, mark, STYLES.get(level, ""))
        canvas.put(left, row, ratio, style)
    else:
        canvas.put(left, row, name, "bold")
        canvas.put(left + cells(name) + 1, row, f"{ratio} {mark}", style)
