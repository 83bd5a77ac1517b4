"""A pool as a tower: bytes go up, containment goes to the right, words that do not fit into a box stand beside it.

All pools of a picture stand on one ground, at one number of bytes per pixel. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Absent, PoolKind
from memwatch.reporting.render import words
from memwatch.reporting.render.containment import Growing, Node, build_nodes, count_columns
from memwatch.reporting.render.drawing import (
    INSET,
    LINE_HEIGHT,
    Box,
    Drawing,
    Line,
    Rectangle,
    Text,
    outline,
    shorten,
    spread,
    width_of,
)
from memwatch.reporting.render.memory_map import GPU_MEMORY, MemoryMap

# From a tower to its words, and leaders to them.
BESIDE = 1.36
# Ends of the columns, in parts of the width, for one, two and three of them.
COLUMN_ENDS: Mapping[int, tuple[float, ...]] = {1: (1.0,), 2: (0.42, 1.0), 3: (0.26, 0.60, 1.0)}
# A pool lower than this beside the largest is a sliver with its words above it.
MIN_TOWER_PIXELS = 40.0
# More pools than these have no words beside them; a row has no more than MAX_CELLS.
MAX_NAMED_POOLS, MAX_CELLS = 3, 16
# Ends of the columns of a pool without words beside it, where what is inside MIG instances has the width.
CELL_ENDS: Mapping[int, tuple[float, ...]] = {1: (1.0,), 2: (0.1, 1.0), 3: (0.1, 0.2, 1.0)}
# Width of the line that is the level of a MIG instance.
CAP = 3.0
# Levels with a colour of their own.
ABOVE_OK = frozenset({"medium", "high", "critical"})
# Bytes of fewer pixels have no words: those of a rounding, such as 342 B of 95 GiB.
MIN_NAMED = 1e-3
# What a process held before it grew has words from this height on, in parts of the font's size.
MIN_STRIP = 0.3
# Words in a pool without figures, before the reason.
NO_FIGURES = "no figures"
# Nor have pools in a narrower cell, in parts of the font's size.
MIN_CELL = 22.0


def choose_scale(maps: Iterable[MemoryMap], height: float) -> float:
    """Return the pixels per byte at which the largest of these pools is as high as the place."""
    largest = max((one.whole.size_bytes for one in maps), default=0)
    return height / largest if largest else 0.0


class Note(Struct, frozen=True):
    """Name and figure of bytes without words in them, at the height `y`.

    `span`: top and ground of bytes that contain others, which stand between them and the words.
    """

    y: float
    name: str
    figure: str
    span: tuple[float, float] | None = None
    size_bytes: int = 0

    @property
    def block(self) -> Block:
        spans = (self.span,) if self.span else ()
        return Block(self.y, ((self.name, self.figure),), spans, size_bytes=self.size_bytes)


class Tower(Struct, frozen=True):
    """Contents of a pool, placed: the drawing, and the bytes without words in it."""

    drawing: Drawing
    notes: tuple[Note, ...]


def draw_tower(
    one: MemoryMap,
    frame: Rectangle,
    gutter: float,
    font: float,
    growing: Growing | None = None,
    levels: Mapping[str, str] = MappingProxyType({}),
) -> Drawing:
    """Draw what a pool holds, filling the frame. `gutter`: room to the right of it for words, 0 for none."""
    tower = place_tower(one, frame, gutter, font, growing, levels=levels)
    return tower.drawing + write_beside(tower.notes, frame, gutter, font) if gutter else tower.drawing


def place_tower(
    one: MemoryMap,
    frame: Rectangle,
    gutter: float,
    font: float,
    growing: Growing | None = None,
    ends: Mapping[int, tuple[float, ...]] = COLUMN_ENDS,
    some: bool | None = None,
    nodes: Sequence[Node] = (),
    levels: Mapping[str, str] = MappingProxyType({}),
) -> Tower:
    """Place what a pool holds in the frame, with words inside where they fit. `gutter` as in `draw_tower`.

    `ends`: those of columns, as in COLUMN_ENDS. `some`: write the lines that fit of words that do not fit, which is
    so without a gutter. `nodes`: what it would hold, in place of what it holds. `levels`: those of MIG instances.
    """
    nodes = nodes or build_nodes(one, growing, levels)
    if not nodes and isinstance(one.whole.used_bytes, Absent):
        return Tower(hatch_unknown(one, one.whole.used_bytes, frame, font), ())
    some = not gutter if some is None else some
    tower = place_nodes(nodes, frame, ends[count_columns(nodes)], font, some)
    if isinstance(one.edge, Absent) or isinstance(one.whole.used_bytes, Absent) or one.slices:
        return tower
    return mark_used(tower, one.whole.used_bytes, one.whole.size_bytes, frame, gutter, font)


def hatch_unknown(one: MemoryMap, reason: Absent, frame: Rectangle, font: float) -> Drawing:
    """Draw a pool without figures: all of it is hatched, with the reason as far as that fits."""
    lines = (NO_FIGURES, words.ABSENT_WORDS[reason])
    title = f"{one.whole.label}: {', '.join(lines)}"
    box = Box(frame.x, frame.y, frame.width, frame.height, one.whole.size_bytes, "unknown", 0, title)
    x, y, rows = frame.x + INSET * font, frame.y + 1.2 * font, int((frame.height / font - 0.3) / LINE_HEIGHT)
    fitting = [line for line in lines if width_of(line, font, strong=True) <= frame.width - 2 * INSET * font]
    texts = tuple(
        Text(x, y + LINE_HEIGHT * font * row, line if row else "", "" if row else line, kind="unknown")
        for row, line in enumerate(fitting[:rows])
    )
    return Drawing((), (box,), (outline(frame),), texts)


def place_nodes(
    nodes: Iterable[Node], frame: Rectangle, columns: Sequence[float], font: float, some: bool = False
) -> Tower:
    """Place bytes in the frame, with words inside where they fit. `columns`: their ends, in parts of the width.

    Growth is at the top of its box, in the colour of its level. Words are in the larger part: no line crosses them.
    The level of a MIG instance is a line at its top.
    """
    boxes: list[Box] = []
    above: list[Box] = []
    texts: list[Text] = []
    notes: list[Note] = []
    caps: list[Line] = []
    for box, node in (pair for one in nodes for pair in place_boxes(one, frame, columns, 0)):
        boxes.append(box)
        larger = box
        if node.kind == "slice" and node.level in ABOVE_OK:
            y = box.y + CAP / 2
            caps.append(Line(f"cap-{node.level}", ((box.x, y), (frame.right, y))))
        if node.grown:
            height, size = box.height * node.grown, round(node.size_bytes * node.grown)
            grown = replace(
                box, height=height, size_bytes=size, kind=f"level-{node.level}", title=node.details[0], link=""
            )
            above.append(grown)
            rest = replace(box, y=box.y + height, height=box.height - height, size_bytes=node.size_bytes - size)
            larger = grown if 2 * height >= box.height else rest
            if larger is rest:
                texts += _write_growth(grown, font)
            else:
                figure = words.size(rest.size_bytes)
                before = _write_before(rest, figure, font)
                texts += before
                if not before and rest.height >= MIN_STRIP * font:
                    notes.append(
                        Note(rest.y + rest.height / 2, f"{node.name} before", figure, None, rest.size_bytes)
                    )
        written = write_inside(larger, node, font, some=some)
        texts += written
        if not written and box.height >= MIN_NAMED:
            span = (box.y, box.y + box.height) if node.inside else None
            size = node.size_bytes
            notes.append(Note(box.y + box.height / 2, node.name, words.size(size), span, size))
    return Tower(Drawing((), (*boxes, *above), (*caps, outline(frame)), tuple(texts)), tuple(notes))


def _write_growth(box: Box, font: float) -> list[Text]:
    """Return the figure of a growth, if it fits into its box."""
    figure = f"+{words.size(box.size_bytes)}"
    fits = width_of(figure, font, strong=True) <= box.width - 2 * INSET * font
    if not fits or box.height < (LINE_HEIGHT + 0.3) * font:
        return []
    return [Text(box.x + INSET * font, box.y + 1.2 * font, strong=figure, kind=box.kind)]


def _write_before(box: Box, figure: str, font: float) -> list[Text]:
    """Return the figure of what a process held before it grew, if it fits into its box."""
    name = "before"
    fits = width_of(name, font, strong=True) + width_of(f" {figure}", font) <= box.width - 2 * INSET * font
    if not fits or box.height < (LINE_HEIGHT + 0.3) * font:
        return []
    return [Text(box.x + INSET * font, box.y + 1.2 * font, strong=name, behind=f" {figure}", kind=box.kind)]


def mark_used(tower: Tower, used: int, size: int, frame: Rectangle, gutter: float, font: float) -> Tower:
    """Add the line of used memory, and its figure to the words beside the tower, where these have a gutter."""
    y = frame.ground - frame.height * min(1.0, used / size)
    drawing = tower.drawing + Drawing(lines=(Line("used", ((frame.x, y), (frame.right, y))),))
    if not gutter:
        return Tower(drawing, tower.notes)
    figure, ratio = f"used {words.size(used)}", words.ratio(used / size)
    room = gutter - (BESIDE + 0.09) * font
    known = (f"{figure} · {ratio}", figure, f"used {ratio}")
    fitting = next((one for one in known if width_of(one, font, strong=True) <= room), ratio)
    return Tower(drawing, (*tower.notes, Note(y, "", fitting)))


def place_boxes(node: Node, frame: Rectangle, columns: Sequence[float], depth: int) -> Iterator[tuple[Box, Node]]:
    """Yield the box of a node and of what it contains. Without parts it reaches to the right edge."""
    left = frame.x + frame.width * (columns[depth - 1] if depth else 0.0)
    right = frame.x + frame.width * (columns[depth] if node.inside else 1.0)
    height = node.part * frame.height
    kind = f"{node.kind}-family" if node.inside and not depth else node.kind
    title = f"{node.name}: {words.size(node.size_bytes)}"
    y = frame.ground - node.start * frame.height - height
    yield Box(left, y, right - left, height, node.size_bytes, kind, depth, title, node.link), node
    for one in node.inside:
        yield from place_boxes(one, frame, columns, depth + 1)


def write_inside(box: Box, node: Node, font: float, some: bool = False) -> list[Text]:
    """Return the words of a box: name and figure in lines below each other, or in one; none if they do not fit.

    `some`: those lines that fit, where there is no room for words beside the tower.
    """
    room, step = box.width - 2 * INSET * font, LINE_HEIGHT * font
    rows = int((box.height - 0.3 * font) / step)
    figure = words.size(node.size_bytes)
    x, y = box.x + INSET * font, box.y + 0.15 * font + 0.95 * font
    if rows >= 2 and width_of(node.name, font, strong=True) <= room and width_of(figure, font) <= room:
        lines = [one for one in (figure, *node.details) if width_of(one, font) <= room][: rows - 1]
        return [
            Text(x, y + 0.1 * font, strong=node.name, kind=box.kind),
            *(Text(x, y + 0.1 * font + step * row, plain=one, kind=box.kind) for row, one in enumerate(lines, 1)),
        ]
    if rows >= 1 and width_of(node.name, font, strong=True) + width_of(f" {figure}", font) <= room:
        middle = box.y + box.height / 2 + 0.36 * font
        return [Text(x, min(y + 0.1 * font, middle), strong=node.name, behind=f" {figure}", kind=box.kind)]
    if not some:
        return []
    lines = [one for one in (node.name, figure, *node.details) if width_of(one, font) <= room][:rows]
    return [Text(x, y + 0.1 * font + step * row, plain=one, kind=box.kind) for row, one in enumerate(lines)]


def draw_cell(
    one: MemoryMap,
    frame: Rectangle,
    font: float,
    growing: Growing | None = None,
    levels: Mapping[str, str] = MappingProxyType({}),
    nodes: Sequence[Node] = (),
) -> Drawing:
    """Draw what one of many pools holds, with words in its boxes only. Parameters as of `place_tower`."""
    drawing = place_tower(one, frame, 0.0, font, growing, CELL_ENDS, nodes=nodes, levels=levels).drawing
    return replace(drawing, texts=tuple(_write_cell(drawing.boxes, font)))


def list_wordless(drawing: Drawing) -> Iterator[str]:
    """Yield names and figures of what is used in one of many pools and has no word there, from the ground up."""
    slices = [box for box in drawing.boxes if box.kind.startswith("slice")]
    for box in drawing.boxes:
        name, _, figure = box.title.rpartition(": ")
        is_free = box.kind in ("free", "available", "planned")
        if box in slices:
            inner = [one for one in drawing.boxes if one.depth > box.depth and is_inside(one, box)]
            free = sum(one.size_bytes for one in inner if one.kind == "free")
            figure = f"{words.size_within(box.size_bytes - free, box.size_bytes)} of {figure}"
        elif is_free or is_grown(box) or box.height < 1.0 or any(is_inside(box, one) for one in slices):
            continue
        if not any(box.y <= text.y <= box.y + box.height and box.x <= text.x for text in drawing.texts):
            yield f"{name} {figure}"


def is_grown(box: Box) -> bool:
    """Check that bytes are the growth of others, over which they lie."""
    return box.title.startswith("+")


def is_inside(one: Box, whole: Box) -> bool:
    """Check that bytes are part of others, give or take a rounding."""
    return whole.y - 0.1 <= one.y and one.y + one.height <= whole.y + whole.height + 0.1


def _write_cell(boxes: Sequence[Box], font: float) -> Iterator[Text]:
    """Write names, sizes and PIDs into the boxes of one of many pools, as far as they fit."""
    grown = {(box.x, box.y): box for box in boxes if is_grown(box)}
    slices = [box for box in boxes if box.kind.startswith("slice")]
    of_slices = {part: lines for one in slices for part, lines in _name_slice(one, boxes, font)}
    boxes_top = min((box.y for box in boxes), default=0.0)
    for box in boxes:
        room = box.width - 0.73 * font
        name, _, figure = box.title.rpartition(": ")
        above = grown.get((box.x, box.y))
        size = _choose_size(figure, room, font)
        if box is above:
            lines = [_choose_size(f"+{words.size(box.size_bytes)}", room, font)]
        elif box in slices:
            continue
        elif figure.startswith(NO_FIGURES):
            lines = figure.split(", ")
        elif box in of_slices:
            lines = of_slices[box]
        elif box.kind == "planned":
            names = (name, name.rpartition("/")[2], "the model")
            lines = [next((one for one in names if width_of(one, font, strong=True) <= room), "model"), size]
        else:
            lines = [name, size, box.link.removeprefix("processes/") if box.link.startswith("processes/") else ""]
        top = box.y + (above.height if above is not None and above is not box else 0.0)
        rows = int((box.y + box.height - top - 1.0) / (LINE_HEIGHT * font))
        if not rows and box.kind == "planned" and box.y - boxes_top >= 2.2 * LINE_HEIGHT * font:
            yield Text(box.x + 0.45 * font, box.y - 0.36 * font, strong=lines[0], kind="free")
        fitting = [line for line in lines if line and width_of(line, font) <= room]
        for row, line in enumerate(fitting[:rows]):
            text = Text(box.x + 0.45 * font, top + (1.09 + row * LINE_HEIGHT) * font, kind=box.kind)
            is_strong = row == 0 and width_of(line, font, strong=True) <= room
            yield replace(text, strong=line) if is_strong else replace(text, plain=line)


def _name_slice(one: Box, boxes: Sequence[Box], font: float) -> Iterator[tuple[Box, list[str]]]:
    """Yield the lines in each part of a MIG instance: its name in the largest, and what is used there or beside it.

    Of two parts with a line each, the upper one has the name. A single line has both, if they fit.
    """
    parts = [box for box in boxes if box.depth > one.depth and is_inside(box, one)]
    if not parts:
        return
    parts.sort(key=lambda box: (-round(box.height, 1), box.kind == "free"))
    name, free = one.title.rpartition(": ")[0], sum(box.size_bytes for box in parts if box.kind == "free")
    room = parts[0].width - 0.73 * font
    figure = _choose_size(words.size(one.size_bytes - free), room, font)
    first, second = parts[0], next((box for box in parts[1:] if "free" in (box.kind, parts[0].kind)), None)
    beside = _count_rows(second, font) if second is not None else 0
    if _count_rows(first, font) > 1 and (first.kind != "free" or not beside):
        lines = {first: [name, figure]}
    elif second is not None and beside:
        upper, lower = (first, second) if first.y < second.y else (second, first)
        lines = {upper: [name], lower: [figure]}
    else:
        both = f"{name} {figure.removesuffix(' GiB')}"
        lines = {first: [both if width_of(both, font, strong=True) <= room else name]}
    for box in parts:
        yield box, lines.get(box, [])


def _count_rows(box: Box, font: float) -> int:
    return int((box.height - 1.0) / (LINE_HEIGHT * font))


def _choose_size(figure: str, room: float, font: float) -> str:
    """Return a figure, without its GiB if there is no room for the unit."""
    return figure if width_of(figure, font) <= room else figure.removesuffix(" GiB")


class Block(Struct, frozen=True):
    """Lines of words beside a tower, each plain and strong, at the height `y`.

    `brackets`: top and ground of bytes with a bracket in place of a leader. `link`: where the first line leads.
    """

    y: float
    lines: tuple[tuple[str, str], ...]
    brackets: tuple[tuple[float, float], ...] = ()
    link: str = ""
    size_bytes: int = 0


class Link(Struct, frozen=True):
    """Words from `x` on the line `y` that lead to a page."""

    x: float
    y: float
    text: str
    link: str


def write_beside(notes: Iterable[Note], frame: Rectangle, gutter: float, font: float) -> Drawing:
    """Return words beside a tower, each with a leader or a bracket to its bytes."""
    return write_gutter([note.block for note in notes], frame, gutter, font, LINE_HEIGHT * font)[0]


def write_gutter(
    blocks: Iterable[Block], frame: Rectangle, gutter: float, font: float, above: float
) -> tuple[Drawing, tuple[Link, ...]]:
    """Write blocks of words beside a tower, a line apart, each with a leader or brackets to its bytes.

    They begin `above` the frame at most. Those that do not fit one below the other are left out: the longest first,
    of these the one with the fewest bytes.
    """
    step = LINE_HEIGHT * font
    start, width = frame.right + BESIDE * font, gutter - (BESIDE + 0.09) * font
    ordered = sorted((_fold(block, width, font) for block in blocks), key=lambda block: block.y)
    room = frame.height + above + 0.36 * font
    while ordered and sum(len(block.lines) for block in ordered) * step > room:
        ordered.remove(max(ordered, key=lambda one: (len(one.lines), bool(one.lines[0][0]), -one.size_bytes)))
    wanted: list[float] = []
    for block in ordered:
        first = block.y - (len(block.lines) - 1) * step / 2
        wanted += [first + number * step for number in range(len(block.lines))]
    texts: list[Text] = []
    lines: list[Line] = []
    links: list[Link] = []
    places = iter(spread(wanted, step, frame.y - above, frame.ground))
    for block in ordered:
        for row, (plain, strong) in enumerate(block.lines):
            at = next(places)
            left = width - width_of(f" {strong}", font, strong=True) if strong else width
            word = shorten(plain, left, font) if plain else ""
            if row == 0:
                lines += _draw_leader(block, frame.right, at + (len(block.lines) - 1) * step / 2, at, font)
            if row == 0 and block.link:
                links.append(Link(start, at + 0.36 * font, word, block.link))
                continue
            strong = strong if plain else shorten(strong, width, font, strong=True)
            kind = "muted" if plain and not block.link else ""
            text = f"{word} " if word and strong else word
            texts.append(Text(start, at + 0.36 * font, text, strong, kind=kind))
    return Drawing((), (), tuple(lines), tuple(texts)), tuple(links)


def _fold(block: Block, width: float, font: float) -> Block:
    """Give figures that do not fit beside their name a line below it: no name is cut for them."""
    lines: list[tuple[str, str]] = []
    for plain, strong in block.lines:
        is_wide = width_of(plain, font) + width_of(f" {strong}", font, strong=True) > width
        lines += [(plain, ""), ("", strong)] if plain and strong and is_wide else [(plain, strong)]
    return replace(block, lines=tuple(lines))


def _draw_leader(block: Block, right: float, middle: float, first: float, font: float) -> Iterator[Line]:
    """Yield a leader to the first line of a block, or brackets, of which the first leads to its middle."""
    near, edge, end = (right + part * font for part in (0.27, 0.73, 1.09))
    if not block.brackets:
        yield Line("leader", ((right, block.y), (end, first)))
        return
    kind = "bracket" if block.link else "leader"
    for top, ground in block.brackets:
        yield Line(kind, ((near, top), (edge, top), (edge, ground), (near, ground)))
    yield Line(kind, ((edge, block.y), (end, middle)))


def join_past(one: MemoryMap, frame: Rectangle, left: float) -> Drawing:
    """Draw the line of used memory from the past, which ends at `left`, to the tower."""
    if isinstance(one.edge, Absent):
        return Drawing()
    y = frame.ground - one.edge * frame.height
    return Drawing(lines=(Line("used", ((left, y), (frame.x, y))),))


def draw_captions(
    one: MemoryMap,
    frame: Rectangle,
    font: float,
    ends: Mapping[int, tuple[float, ...]] = COLUMN_ENDS,
    nodes: Sequence[Node] = (),
) -> Drawing:
    """Say above the columns what is in them. `nodes` as in `place_tower`."""
    nodes = nodes or build_nodes(one)
    if not nodes:
        return Drawing()
    depth = count_columns(nodes)
    own = one.pool is None or one.pool.kind in GPU_MEMORY
    captions = ("held by", "used for") if own else (f"in {one.whole.label}", "held by", "used for")
    first = frame.width * ends[depth][0]
    is_narrow = first < max(8 * font, width_of(captions[0], font))
    if one.pool is not None and one.pool.kind is PoolKind.SYSTEM_RAM and is_narrow:
        captions = ("in RAM", *captions[1:])
    if one.slices:
        captions = ("MIG instances", "used")
    starts = (0.0, *ends[depth])
    rooms = [frame.width * (end - start) for start, end in pairwise(starts)]
    return Drawing(
        texts=tuple(
            Text(frame.x + frame.width * start, frame.y - 0.6 * font, plain=caption, kind="muted")
            for start, caption, room in zip(starts, captions[:depth], rooms, strict=False)
            if width_of(caption, font) <= room
        )
    )


def draw_sliver(one: MemoryMap, cell: Rectangle, scale: float, font: float) -> Drawing:
    """Draw a pool that is too low for words at this scale, with its words above it."""
    height = one.whole.size_bytes * scale
    frame = Rectangle(cell.x, cell.ground - height, cell.width, height)
    tower = draw_tower(one, frame, 0.0, font)
    used = one.whole.used_bytes
    figure = words.size(one.whole.size_bytes)
    if isinstance(used, int):
        figure = f"{words.size_within(used, one.whole.size_bytes)} of {figure}"
    room = cell.width + font
    y = frame.y - 0.7 * font
    texts = (
        Text(frame.x, y - LINE_HEIGHT * font, strong=shorten(one.whole.label, room, font, strong=True)),
        Text(frame.x, y, plain=figure),
    )
    return replace(tower, texts=texts)


# Height of a pool that lies on its side, in lines.
BAND_LINES = 2.6


def draw_band(one: MemoryMap, place: Rectangle, scale: float, font: float, nodes: Sequence[Node] = ()) -> Drawing:
    """Draw a pool on its side, at a whole part of the scale of the towers where it is longer than the place.

    `nodes` as in `place_tower`, without what is inside them.
    """
    size = one.whole.size_bytes
    part = max(1, math.ceil(size * scale / place.width))
    factor = scale / part
    boxes, inside, start = [], [], 0
    parts = [(one.kind, one.size_bytes, one.name) for one in nodes] or [
        (one.kind, one.size_bytes, one.label) for one in one.parts
    ]
    for kind, part_bytes, label in parts:
        x, width = place.x + start * factor, part_bytes * factor
        start += part_bytes
        title = f"{label}: {words.size(part_bytes)}"
        link = "processes" if kind == "anonymous" else ""
        boxes.append(Box(x, place.y, width, place.height, part_bytes, kind, 0, title, link))
        figure = f" {words.size(part_bytes)}"
        if width_of(label, font, strong=True) + width_of(figure, font) <= width - 2 * INSET * font:
            y = place.y + place.height / 2 + 0.36 * font
            inside.append(Text(x + INSET * font, y, strong=label, behind=figure, kind=kind))
        elif nodes and width_of(label, font, strong=True) <= width - 2 * INSET * font:
            inside.append(Text(x + INSET * font, place.y + place.height / 2 + 0.36 * font, strong=label, kind=kind))
    used = one.whole.used_bytes
    figure = words.absent(used) if isinstance(used, Absent) else words.size_within(used, size)
    ratio = "at the GPUs' scale" if part == 1 else f"at 1/{part} of the GPUs' scale"
    frame = replace(place, width=size * factor)
    hatch = hatch_unknown(one, used, frame, font) if isinstance(used, Absent) and not parts else Drawing()
    room = place.width - width_of(one.whole.label, font, strong=True)
    behind = (f" {figure} of {words.size(size)}, {ratio}", f" {figure}, {ratio}", f" {ratio}", "")
    fitting = next(text for text in behind if width_of(text, font) <= room or not text)
    words_above = Text(place.x, place.y - 0.6 * font, strong=one.whole.label, behind=fitting)
    return Drawing((), tuple(boxes), (outline(frame),), (words_above, *inside)) + hatch
