"""The landscape of a machine's memory: its pools as towers on one ground, at one number of bytes per pixel.

Bytes go up, time goes to the left, containment goes to the right: a share stands in its pool, holders stand in the
share, and the parts of a model server in their process. Words that do not fit into a box stand beside its tower.
Lengths are in pixels, y grows downwards. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Absent, PoolKind
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import GPU_MEMORY, Bracket, MemoryMap, Segment, split_gpus

# Widths of characters in parts of the font's size, at least: those of DejaVu Sans, the widest of the usual fonts,
# as measured in Chromium (November 2026). Bold ones are a tenth wider.
WIDTHS = {
    0.36: " ',./:;\\|·IJijl",
    0.50: '()-[]ft!r"*_`',
    0.60: "?FLcksvxyz",
    0.70: "ABCEKPRSTVXYZ$",
    0.80: "&DGHNOQU",
}
WIDTHS |= {0.65: "0123456789abdeghnopqu{}", 0.85: "#+<=>^w~⊂→"}
WIDTH_OF = {one: width for width, several in WIDTHS.items() for one in several}
STRONG_FACTOR = 1.12
# In parts of the font's size: space beside words, and from one line to the next.
INSET, LINE_HEIGHT = 0.5, 1.28
# From a tower to its words, and leaders to them.
BESIDE = 1.36
# Ends of the columns, in parts of the width, for one, two and three of them.
COLUMN_ENDS: Mapping[int, tuple[float, ...]] = {1: (1.0,), 2: (0.42, 1.0), 3: (0.26, 0.60, 1.0)}
# Bytes of rounding between two ways to a sum.
SLACK = 1e-9


class Rectangle(Struct, frozen=True):
    """A place to draw in."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def ground(self) -> float:
        return self.y + self.height


class Box(Struct, frozen=True):
    """Bytes to scale: `height` is `size_bytes` times the scale. `kind`: its colour. `depth`: 0 in a pool itself.

    `link`: page of these bytes, relative to the pages. Empty if they are part of a box with a link.
    """

    x: float
    y: float
    width: float
    height: float
    size_bytes: int
    kind: str
    depth: int
    title: str
    link: str = ""


class Line(Struct, frozen=True):
    """A line through points, or the border of an area. `kind`: its colour."""

    kind: str
    points: tuple[tuple[float, float], ...]


class Text(Struct, frozen=True):
    """Words from `x` on the line `y`: plain ones, strong ones, and plain ones behind these.

    `anchor`: start, middle or end. `kind`: the bytes that they stand on, a level, or `muted`.
    """

    x: float
    y: float
    plain: str = ""
    strong: str = ""
    behind: str = ""
    anchor: str = "start"
    kind: str = ""


class Drawing(Struct, frozen=True):
    """Areas, boxes, lines and texts, drawn in this order. Boxes: from the ground up, a whole before its parts."""

    areas: tuple[Line, ...] = ()
    boxes: tuple[Box, ...] = ()
    lines: tuple[Line, ...] = ()
    texts: tuple[Text, ...] = ()

    def __add__(self, other: Drawing) -> Drawing:
        return Drawing(
            self.areas + other.areas, self.boxes + other.boxes, self.lines + other.lines, self.texts + other.texts
        )


class Growing(Struct, frozen=True):
    """The process that grows in a pool, and by how many bytes in `seconds`: they take the colour of the level."""

    pool: str
    pid: int
    level: str
    grown_bytes: int
    seconds: float


class Node(Struct, frozen=True):
    """Bytes of a pool with a name. `start` and `part`: where they stand and how high, as fractions of the pool.

    `grown`: the part of these bytes, at their top, that is new at this `level`; without it, they are a MIG instance
    of this level, or its used part. `link`: their page.
    """

    kind: str
    start: float
    part: float
    size_bytes: int
    name: str
    details: tuple[str, ...] = ()
    inside: tuple[Node, ...] = ()
    grown: float = 0.0
    level: str = ""
    link: str = ""

    @property
    def depth(self) -> int:
        return 1 + max((one.depth for one in self.inside), default=0)


def build_nodes(
    one: MemoryMap, growing: Growing | None = None, levels: Mapping[str, str] = MappingProxyType({})
) -> tuple[Node, ...]:
    """Return what a pool holds, from the ground up. In memory of a GPU that is its holders, without a family.

    `levels`: those of MIG instances by id.
    """
    if one.slices:
        return tuple(_build_slices(one, levels))
    holders = _lift_growing([_build_holder(found, one, growing) for found in one.segments if found.size_bytes])
    if one.pool is None or one.pool.kind in GPU_MEMORY:
        return tuple(holders)
    return tuple(_build_families(one, holders))


def _lift_growing(nodes: Sequence[Node]) -> list[Node]:
    """Put the process that grows on top of those of its kind: past and now show its bytes at one height."""
    found = next((node for node in nodes if node.grown), None)
    if found is None:
        return list(nodes)
    above = [one for one in nodes if one.kind == found.kind and one.start > found.start and one.details]
    lifted = [_shift(found, sum(one.part for one in above)), *(_shift(one, -found.part) for one in above)]
    others = [one for one in nodes if one is not found and one not in above]
    return sorted([*others, *lifted], key=lambda one: one.start)


def _shift(node: Node, by: float) -> Node:
    return replace(node, start=node.start + by, inside=tuple(_shift(inner, by) for inner in node.inside))


def _build_families(one: MemoryMap, holders: Sequence[Node]) -> Iterator[Node]:
    starts = accumulate((part.size_bytes for part in one.parts), initial=0)
    size = one.whole.size_bytes
    for part, before in zip(one.parts, starts, strict=False):
        link = "processes" if part.kind == "anonymous" else "devices" if part.kind == "devices" else ""
        family = Node(part.kind, before / size, part.size_bytes / size, part.size_bytes, part.label, link=link)
        inside = _list_inside(family, holders)
        shares = [found for found in one.brackets if found.share and part.kind == "devices"]
        if shares and all(_find_share(node, shares) is not None or not _is_named(node) for node in inside):
            yield from _build_shares(family, shares, inside, one.whole.label)
        elif any(_is_named(node) for node in inside):
            yield replace(family, inside=inside)
        elif part.size_bytes:
            yield family


def _is_named(node: Node) -> bool:
    return bool(node.details)


def _build_shares(family: Node, shares: Sequence[Bracket], inside: Sequence[Node], whole: str) -> Iterator[Node]:
    """Yield the shares of devices with their holders, and the memory of devices that no share explains."""
    end = family.start
    for found in shares:
        share = Node(
            "devices", found.start, found.width, found.size_bytes, found.label, (f"⊂ {whole}",), link="devices"
        )
        named = tuple(node for node in inside if _is_named(node) and _find_share(node, [found]) is found)
        yield (
            replace(share, inside=(*named, *_build_rest(share, named, f"other in {share.name.split()[0]}")))
            if named
            else share
        )
        end = found.start + found.width
    left = family.size_bytes - sum(found.size_bytes for found in shares)
    if left > 0:
        yield replace(family, start=end, part=family.start + family.part - end, size_bytes=left)


def _find_share(node: Node, shares: Sequence[Bracket]) -> Bracket | None:
    """Return the share that has all of a holder's bytes in the picture."""
    end = node.start + node.part
    return next(
        (one for one in shares if one.start - SLACK <= node.start and end <= one.start + one.width + SLACK),
        None,
    )


def _list_inside(family: Node, nodes: Iterable[Node]) -> tuple[Node, ...]:
    end = family.start + family.part
    return tuple(
        node for node in nodes if family.start - SLACK <= node.start and node.start + node.part <= end + SLACK
    )


def _build_rest(parent: Node, nodes: Sequence[Node], name: str) -> tuple[Node, ...]:
    left = parent.size_bytes - sum(node.size_bytes for node in nodes)
    if left <= 0:
        return ()
    start = max((node.start + node.part for node in nodes), default=parent.start)
    return (Node(parent.kind, start, parent.start + parent.part - start, left, name, link=parent.link),)


def _build_holder(found: Segment, one: MemoryMap, growing: Growing | None) -> Node:
    kind, process = found.kind, found.process
    if found.holder == "gpu":
        kind = "devices"
    node = Node(kind, found.start, found.width, found.size_bytes, found.label)
    if process is None:
        named = any(other.process is not None and other.kind == found.kind for other in one.segments)
        return replace(node, name="other") if named and not found.label.startswith("other") else node
    node = replace(node, details=(f"PID {process.pid}",), link=f"processes/{process.pid}")
    engine = next((drawn.engine for drawn in one.engine_parts if process.pid in drawn.engine.pids), None)
    if engine is not None and kind == "devices":
        model = () if isinstance(engine.model, Absent) else (engine.model.rpartition("/")[2],)
        node = replace(node, name=engine.title, details=(f"{process.title} {process.pid}", *model))
    parts = [
        Node(
            f"engine-{drawn.part.kind}",
            drawn.start,
            drawn.width,
            drawn.part.size_bytes,
            drawn.part.label,
            ("empty: can be freed",) if drawn.part.kind == "kv_reserved" else (),
            link=node.link,
        )
        for drawn in one.engine_parts
        if process.pid in drawn.engine.pids and _list_inside(node, [_at(drawn.start, drawn.width)])
    ]
    if (
        growing
        and (growing.pool, growing.pid) == (one.whole.id, process.pid)
        and found is _find_largest(one, process.pid)
    ):
        node = _mark_growth(node, growing)
    return replace(node, inside=(*parts, *_build_rest(node, parts, "rest of engine"))) if parts else node


def _find_largest(one: MemoryMap, pid: int) -> Segment:
    mine = [found for found in one.segments if found.process is not None and found.process.pid == pid]
    return max(mine, key=lambda found: found.size_bytes)


def _mark_growth(node: Node, growing: Growing) -> Node:
    """Give the bytes that a process has grown by the colour of the level: those at the top of what it holds."""
    grown = min(growing.grown_bytes, node.size_bytes)
    if grown <= 0:
        return node
    words_of_it = f"+{words.size(grown)} in {words.duration(growing.seconds)}"
    return replace(node, details=(words_of_it, *node.details), grown=grown / node.size_bytes, level=growing.level)


def _at(start: float, part: float) -> Node:
    return Node("", start, part, 0, "")


def _build_slices(one: MemoryMap, levels: Mapping[str, str]) -> Iterator[Node]:
    """Yield the MIG instances, each filled as far as it is used, and the memory that none has."""
    size, end = one.whole.size_bytes, 0.0
    for found in one.slices:
        limit = found.share.limit_bytes
        if not isinstance(limit, int):
            continue
        name, level = found.share.label.rpartition(" ")[2], levels.get(found.share.id, "")
        if isinstance(found.used, Absent):
            yield Node("unknown", found.start, found.width, limit, name, ("use not known",), link="devices")
        else:
            used = round(limit * found.used)
            filled = Node("devices", found.start, found.width * found.used, used, "used", level=level)
            free = Node("free", found.start + filled.part, found.width - filled.part, limit - used, "free")
            inside = tuple(node for node in (filled, free) if node.size_bytes)
            yield Node("slice", found.start, found.width, limit, name, (), inside, level=level, link="devices")
        end = found.start + found.width
    left = size - round(end * size)
    if left > 0:
        yield Node("unattributed", end, 1 - end, left, "not sliced")


def width_of(text: str, font: float, strong: bool = False) -> float:
    """Return the width of a text at a size of the font, in its widest usual face."""
    return sum(WIDTH_OF.get(one, 1.0) for one in text) * font * (STRONG_FACTOR if strong else 1.0)


def shorten(text: str, room: float, font: float, strong: bool = False) -> str:
    """Return the text, or as much of its begin as fits with an ellipsis."""
    if width_of(text, font, strong) <= room:
        return text
    while text and width_of(f"{text}…", font, strong) > room:
        text = text[:-1]
    return f"{text.rstrip()}…"


def choose_scale(maps: Iterable[MemoryMap], height: float) -> float:
    """Return the pixels per byte at which the largest of these pools is as high as the place."""
    largest = max((one.whole.size_bytes for one in maps), default=0)
    return height / largest if largest else 0.0


class Tower(Struct, frozen=True):
    """Contents of a pool, placed: the drawing, and the bytes without words in it.

    `notes`: height on the page, name and figure of each of these.
    """

    drawing: Drawing
    notes: tuple[tuple[float, str, str], ...]


def draw_tower(
    one: MemoryMap, frame: Rectangle, gutter: float, font: float, growing: Growing | None = None
) -> Drawing:
    """Draw what a pool holds, filling the frame. `gutter`: room to the right of it for words, 0 for none."""
    tower = place_tower(one, frame, gutter, font, growing)
    return tower.drawing + write_beside(tower.notes, frame, gutter, font) if gutter else tower.drawing


def place_tower(
    one: MemoryMap,
    frame: Rectangle,
    gutter: float,
    font: float,
    growing: Growing | None = None,
    ends: Mapping[int, tuple[float, ...]] = COLUMN_ENDS,
    some: bool | None = None,
) -> Tower:
    """Place what a pool holds in the frame, with words inside where they fit. `gutter` as in `draw_tower`.

    `ends`: those of columns, as in COLUMN_ENDS. `some`: write the lines that fit of words that do not fit, which is
    so without a gutter.
    """
    nodes = build_nodes(one, growing)
    columns = ends[count_columns(nodes)]
    some = not gutter if some is None else some
    found = [pair for node in nodes for pair in place_boxes(node, frame, columns, 0)]
    inside: list[Text] = []
    above: list[Box] = []
    beside: list[tuple[float, str, str]] = []
    for box, node in found:
        written = write_inside(box, node, font, some=some)
        if node.grown:
            grown = box.height * node.grown
            size = round(node.size_bytes * node.grown)
            above.append(
                Box(box.x, box.y, box.width, grown, size, f"level-{node.level}", box.depth, node.details[0])
            )
            written = [replace(text, kind=above[-1].kind) if text.y < box.y + grown else text for text in written]
        inside += written
        if not written:
            beside.append((box.y + box.height / 2, node.name, words.size(node.size_bytes)))
    drawing = Drawing((), (*(box for box, _ in found), *above), (outline(frame),), tuple(inside))
    if not isinstance(one.edge, Absent) and not one.slices:
        y = frame.ground - one.edge * frame.height
        drawing += Drawing(lines=(Line("used", ((frame.x, y), (frame.right, y))),))
        if isinstance(one.whole.used_bytes, int) and gutter:
            used = f"used {words.size(one.whole.used_bytes)}"
            longer = f"{used} · {words.ratio(one.whole.used_bytes / one.whole.size_bytes)}"
            fits = width_of(longer, font, strong=True) <= gutter - BESIDE * font
            beside.append((y, "", longer if fits else used))
    return Tower(drawing, tuple(beside))


def count_columns(nodes: Iterable[Node]) -> int:
    """Return how deep containment goes: 1 to 3."""
    return max((node.depth for node in nodes), default=1)


def outline(frame: Rectangle) -> Line:
    """Return the border of a place."""
    left, right, top, ground = frame.x, frame.right, frame.y, frame.ground
    return Line("frame", ((left, ground), (left, top), (right, top), (right, ground), (left, ground)))


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


class Block(Struct, frozen=True):
    """Lines of words beside a tower, each plain and strong, at the height `y`.

    `brackets`: top and ground of bytes with a bracket in place of a leader. `link`: where the first line leads.
    """

    y: float
    lines: tuple[tuple[str, str], ...]
    brackets: tuple[tuple[float, float], ...] = ()
    link: str = ""


class Link(Struct, frozen=True):
    """Words from `x` on the line `y` that lead to a page."""

    x: float
    y: float
    text: str
    link: str


def write_beside(notes: Iterable[tuple[float, str, str]], frame: Rectangle, gutter: float, font: float) -> Drawing:
    """Return words beside a tower, each with a leader to its bytes. `notes`: height, name and figure."""
    blocks = [Block(y, ((name, figure),)) for y, name, figure in notes]
    return write_gutter(blocks, frame, gutter, font, LINE_HEIGHT * font)[0]


def write_gutter(
    blocks: Iterable[Block], frame: Rectangle, gutter: float, font: float, above: float
) -> tuple[Drawing, tuple[Link, ...]]:
    """Write blocks of words beside a tower, a line apart, each with a leader or brackets to its bytes.

    They begin `above` the frame at most. Those that do not fit one below the other are left out, the longest first.
    """
    step = LINE_HEIGHT * font
    start, width = frame.right + BESIDE * font, gutter - (BESIDE + 0.09) * font
    ordered = sorted((_fold(block, width, font) for block in blocks), key=lambda block: block.y)
    room = frame.height + above + 0.36 * font
    while ordered and sum(len(block.lines) for block in ordered) * step > room:
        ordered.remove(max(ordered, key=lambda block: (len(block.lines), bool(block.lines[0][0]))))
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
            kind = "muted" if plain and not block.brackets else ""
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
    for top, ground in block.brackets:
        yield Line("bracket", ((near, top), (edge, top), (edge, ground), (near, ground)))
    yield Line("bracket", ((edge, block.y), (end, middle)))


def spread(wanted: Sequence[float], step: float, top: float, bottom: float) -> list[float]:
    """Move places apart to at least a step, as little as needed, between top and bottom if they fit there."""
    found: list[float] = []
    for one in wanted:
        found.append(max(one, found[-1] + step) if found else max(one, top))
    limit = bottom
    for number in range(len(found) - 1, -1, -1):
        found[number] = min(found[number], limit)
        limit = found[number] - step
    return found


class Layer(Struct, frozen=True):
    """One layer of a pool's past: its colour, and a size in bytes at each time, None if that is not known."""

    kind: str
    sizes: tuple[float | None, ...]


class Past(Struct, frozen=True):
    """The past of a pool. The last layer is not used memory. `levels`: from, to and word of each level above OK.

    `full_at`: when it is full at the current rate, in Unix seconds, None without such a forecast. `flags`: what
    happened when, oldest first, with a page each in `flag_links` if there are any.
    """

    times: tuple[float, ...]
    start: float
    end: float
    layers: tuple[Layer, ...]
    levels: tuple[tuple[float, float, str], ...] = ()
    full_at: float | None = None
    flags: tuple[tuple[float, str], ...] = ()
    end_word: str = "now"
    flag_links: tuple[str, ...] = ()


def draw_past(past: Past, size_bytes: int, frame: Rectangle, strip: float) -> Drawing:
    """Draw the layers over time at the scale of the frame, and above it a strip of the levels, `strip` high."""
    drawing = draw_layers(past, size_bytes, frame)
    above = Drawing(tuple(draw_levels(past, replace(frame, y=frame.y - strip, height=strip))))
    return drawing + above + Drawing(lines=(outline(frame),))


def place_time(past: Past, frame: Rectangle, unix: float) -> float:
    """Return the x of a time, within the frame."""
    return frame.x + frame.width * min(1.0, max(0.0, (unix - past.start) / (past.end - past.start)))


def draw_layers(past: Past, size_bytes: float, frame: Rectangle) -> Drawing:
    """Draw the layers over time at the scale of the frame, and the line of used memory."""

    def place_bytes(size: float) -> float:
        return frame.ground - frame.height * min(1.0, size / size_bytes)

    areas: list[Line] = []
    below: list[float | None] = [0.0] * len(past.times)
    lines: list[Line] = []
    for number, layer in enumerate(past.layers):
        above = [
            None if size is None or low is None else low + size
            for size, low in zip(layer.sizes, below, strict=True)
        ]
        for first, last in find_runs(above):
            x = [place_time(past, frame, past.times[i]) for i in range(first, last)]
            upper = [(x[i - first], place_bytes(above[i] or 0.0)) for i in range(first, last)]
            lower = [(x[i - first], place_bytes(below[i] or 0.0)) for i in range(first, last)]
            areas.append(Line(layer.kind, (*upper, *reversed(lower))))
            if number == len(past.layers) - 2:
                lines.append(Line("used", tuple(upper)))
        below = above
    return Drawing(tuple(areas), (), tuple(lines))


def draw_levels(past: Past, frame: Rectangle) -> Iterator[Line]:
    """Yield an area as high as the frame for each time at a level, OK first."""
    known = [None if None in sizes else 0.0 for sizes in zip(*(one.sizes for one in past.layers), strict=True)]
    for first, last in find_runs(known):
        left, right = (place_time(past, frame, past.times[number]) for number in (first, last - 1))
        yield _band("level-low", left, right, frame)
        for began, ended, level in past.levels:
            left, right = (place_time(past, frame, unix) for unix in (began, ended))
            yield _band(f"level-{level}", left, right, frame)


def _band(kind: str, left: float, right: float, strip: Rectangle) -> Line:
    return Line(kind, ((left, strip.y), (right, strip.y), (right, strip.ground), (left, strip.ground)))


def find_runs(figures: Sequence[float | None]) -> list[tuple[int, int]]:
    """Return begin and end of each run of known figures; those of a single one are left out, which has no width."""
    found, first = [], None
    for number, figure in enumerate((*figures, None)):
        if figure is not None and first is None:
            first = number
        elif figure is None and first is not None:
            found += [(first, number)] if number - first > 1 else []
            first = None
    return found


# A pool lower than this beside the largest is a sliver with its words above it.
MIN_TOWER_PIXELS = 40.0
# More pools than these have no words beside them; a row has no more than MAX_CELLS.
MAX_NAMED_POOLS, MAX_CELLS = 3, 16
# Nor have pools in a narrower cell, in parts of the font's size.
MIN_CELL = 22.0
# Height of a pool that lies on its side, in lines.
BAND_LINES = 2.6
# Steps of an axis in bytes: 16 MiB and its multiples.
STEPS = tuple(factor << shift for shift in (24, 27, 30, 33, 36, 39, 42) for factor in (1, 2, 4))


def draw_maps(
    maps: Sequence[MemoryMap], pasts: Mapping[str, Past], place: Rectangle, font: float, growing: Growing | None
) -> Drawing:
    """Draw all pools on one ground at one scale; with many GPUs System RAM is a band below them."""
    gpus, others = split_gpus(maps)
    if not gpus:
        return draw_towers(maps, pasts, place, font, growing)
    band = Rectangle(place.x, place.ground - BAND_LINES * font, place.width, 1.6 * font)
    above = replace(place, height=place.height - (BAND_LINES + 3.2) * font)
    cells = [*gpus, *(one for one in others if not _is_system_ram(one))]
    scale = choose_scale(cells, above.height)
    drawing = draw_towers(cells, pasts, above, font, growing)
    for one in others:
        if _is_system_ram(one):
            drawing += draw_band(one, band, scale, font)
    return drawing


def _is_system_ram(one: MemoryMap) -> bool:
    return one.pool is not None and one.pool.kind is PoolKind.SYSTEM_RAM


def draw_towers(
    maps: Sequence[MemoryMap], pasts: Mapping[str, Past], place: Rectangle, font: float, growing: Growing | None
) -> Drawing:
    shown = maps[:MAX_CELLS]
    scale = choose_scale(shown, place.height)
    drawing = Drawing()
    high = [one for one in shown if one.whole.size_bytes * scale >= MIN_TOWER_PIXELS]
    low = [one for one in shown if one not in high]
    gap, sliver, axis = 1.2 * font, 9.5 * font, 3.2 * font
    room, count = place.width - len(low) * sliver, max(1, len(high))
    many = count > MAX_NAMED_POOLS or room / count < MIN_CELL * font
    x, width = place.x + axis * many, (room - axis * many) / count
    for number, one in enumerate(high):
        cell = Rectangle(x, place.y, width - gap, place.height)
        drawing += draw_cell(one, pasts.get(one.whole.id), cell, scale, font, growing, many)
        if many and not number:
            top = place.ground - one.whole.size_bytes * scale
            drawing += _draw_axis(one, Rectangle(x, top, 0, place.ground - top), font)
        x += width
    for one in low:
        drawing += draw_sliver(one, Rectangle(x, place.y, sliver - gap, place.height), scale, font)
        x += sliver
    if len(maps) > len(shown):
        more = f"and {len(maps) - len(shown)} more"
        drawing += Drawing(texts=(Text(place.x + place.width, place.y - 3 * font, plain=more, anchor="end"),))
    return drawing


def draw_cell(
    one: MemoryMap,
    past: Past | None,
    cell: Rectangle,
    scale: float,
    font: float,
    growing: Growing | None,
    many: bool,
) -> Drawing:
    """Draw a pool: its past, then what it holds now, with the words beside it."""
    height = one.whole.size_bytes * scale
    ground = Rectangle(cell.x, cell.ground - height, cell.width, height)
    axis = 0.0 if many else 3.2 * font
    gutter = 0.0 if many else min(16.5 * font, cell.width * 0.38)
    left = ground.width - axis - gutter
    marks = 0.0 if many or past is None else 4.4 * font
    before = (left - marks) * (0.35 if many else 0.42 if left > 40 * font else 0.34) if past is not None else 0.0
    drawing = Drawing()
    if past is not None:
        frame = Rectangle(ground.x + axis, ground.y, before, height)
        drawing += draw_past(past, one.whole.size_bytes, frame, 0.5 * font)
        drawing += _draw_times(past, frame, font) + _draw_flags(past, frame, font, many)
        drawing += _draw_marks(one, frame, marks, font)
    now = Rectangle(ground.x + axis + before + marks, ground.y, left - before - marks, height)
    drawing += draw_tower(one, now, gutter, font, growing)
    drawing += Drawing() if many else draw_captions(one, now, font)
    if past is not None and past.full_at is not None and marks:
        drawing += _draw_forecast(one, past, replace(now, x=now.x - marks, width=marks), font)
    drawing += _draw_axis(one, Rectangle(ground.x + axis, ground.y, 0, height), font) if not many else Drawing()
    return drawing + _draw_title(one, ground, axis, font, many) if many or past is not None else drawing


def _draw_title(one: MemoryMap, ground: Rectangle, axis: float, font: float, many: bool) -> Drawing:
    y, x, whole = ground.y - (1.1 if many else 2.5) * font, ground.x + axis, one.whole
    if isinstance(whole.used_bytes, Absent):
        figure = words.absent(whole.used_bytes)
    elif many:
        figure = words.ratio(whole.used_bytes / whole.size_bytes) if whole.size_bytes else ""
    else:
        figure = words.size(whole.size_bytes)
    room = ground.width - axis
    if width_of(f"{whole.label} ", font, strong=True) + width_of(figure, font) > room:
        figure = ""
    label = shorten(whole.label, room, font, strong=True)
    return Drawing(texts=(Text(x, y, strong=label, behind=f" {figure}" if figure else ""),))


def draw_captions(
    one: MemoryMap, frame: Rectangle, font: float, ends: Mapping[int, tuple[float, ...]] = COLUMN_ENDS
) -> Drawing:
    """Say above the columns what is in them."""
    depth = count_columns(build_nodes(one))
    own = one.pool is None or one.pool.kind in GPU_MEMORY
    captions = ("held by", "used for") if own else (f"in {one.whole.label}", "held by", "used for")
    if one.pool is not None and one.pool.kind is PoolKind.SYSTEM_RAM and frame.width * ends[depth][0] < 8 * font:
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


def _draw_forecast(one: MemoryMap, past: Past, frame: Rectangle, font: float) -> Drawing:
    """Draw a line from the end of used memory to the top, and when it gets there."""
    if isinstance(one.edge, Absent) or past.full_at is None:
        return Drawing()
    y = frame.ground - one.edge * frame.height
    line = Line("critical", ((frame.x, y), (frame.x + 0.35 * frame.width, frame.y)))
    when = f"full ~{words.clock(past.full_at)[:8]}"
    text = Text(frame.x + 0.35 * frame.width, frame.y - 0.95 * font, strong=when, anchor="end", kind="critical")
    return Drawing((), (), (line,), (text,))


def _draw_axis(one: MemoryMap, frame: Rectangle, font: float) -> Drawing:
    """Draw bytes at round steps beside the tower, and its size at the top."""
    size = one.whole.size_bytes
    step = next((found for found in STEPS if frame.height * found / size >= 2.4 * font), size)
    places = [number * step for number in range(int(size / step) + 1)]
    places = [found for found in places if size - found >= 1.3 * font * size / frame.height or found == size]
    unit = 1 << 30 if size >= 1 << 32 else 1 << 20
    texts = [
        Text(
            frame.x - 0.4 * font,
            frame.ground - frame.height * found / size + 0.36 * font,
            plain=f"{found / unit:,.0f}" if found in places[:-1] or found % unit == 0 else f"{found / unit:,.1f}",
            anchor="end",
            kind="muted",
        )
        for found in (*places, *(() if size in places else (size,)))
    ]
    return Drawing(texts=tuple(texts))


def _draw_flags(past: Past, frame: Rectangle, font: float, many: bool) -> Drawing:
    """Draw what happened: a line each, and the words of the latest as far as there is room above the past."""
    lines, texts = [], []
    right = frame.right - (width_of("full ~00:00:00 ", font, strong=True) if past.full_at else 0.0)
    for unix, word in reversed(past.flags):
        x = frame.x + frame.width * (unix - past.start) / (past.end - past.start)
        lines.append(Line("critical", ((x, frame.y - 0.8 * font), (x, frame.ground))))
        width = width_of(word, font)
        left = min(x - width / 2, right - width)
        if not many and left >= frame.x and left <= x:
            texts.append(Text(left, frame.y - 0.95 * font, plain=word, kind="critical"))
            right = left - font
    return Drawing((), (), tuple(lines), tuple(texts))


def _draw_times(past: Past, frame: Rectangle, font: float) -> Drawing:
    y = frame.ground + 1.4 * font
    first = Text(frame.x, y, plain=words.clock(past.start)[:5], kind="muted")
    if frame.width < 8 * font:
        return Drawing(texts=(first,))
    return Drawing(texts=(first, Text(frame.right, y, strong=past.end_word, anchor="middle")))


def _draw_marks(one: MemoryMap, frame: Rectangle, room: float, font: float) -> Drawing:
    """Draw where the levels begin: lines in the past, words only where there is room between past and now."""
    lines, texts = [], []
    for mark in one.marks:
        y = frame.ground - frame.height * mark.position
        lines.append(Line(mark.level, ((frame.x, y), (frame.right, y))))
        if room:
            word = f"{mark.threshold * 100:g}%"
            texts.append(
                Text(frame.right + room - 0.4 * font, y + 0.36 * font, plain=word, anchor="end", kind=mark.level)
            )
    apart = frame.height * min((b.position - a.position for a, b in pairwise(one.marks)), default=0.0)
    return Drawing((), (), tuple(lines), tuple(texts) if apart >= LINE_HEIGHT * font else ())


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


def draw_band(one: MemoryMap, place: Rectangle, scale: float, font: float) -> Drawing:
    """Draw a pool on its side, at a whole part of the scale of the towers where it is longer than the place."""
    size = one.whole.size_bytes
    part = max(1, math.ceil(size * scale / place.width))
    factor = scale / part
    boxes, inside, start = [], [], 0
    for found in one.parts:
        x, width = place.x + start * factor, found.size_bytes * factor
        start += found.size_bytes
        title = f"{found.label}: {words.size(found.size_bytes)}"
        link = "processes" if found.kind == "anonymous" else ""
        boxes.append(Box(x, place.y, width, place.height, found.size_bytes, found.kind, 0, title, link))
        figure = f" {words.size(found.size_bytes)}"
        if width_of(found.label, font, strong=True) + width_of(figure, font) <= width - 2 * INSET * font:
            y = place.y + place.height / 2 + 0.36 * font
            inside.append(Text(x + INSET * font, y, strong=found.label, behind=figure, kind=found.kind))
    used = one.whole.used_bytes
    figure = words.absent(used) if isinstance(used, Absent) else words.size_within(used, size)
    ratio = "at the GPUs' scale" if part == 1 else f"at 1/{part} of the GPUs' scale"
    frame = replace(place, width=size * factor)
    outline = ((frame.x, frame.y), (frame.right, frame.y), (frame.right, frame.ground), (frame.x, frame.ground))
    room = place.width - width_of(one.whole.label, font, strong=True)
    behind = (f" {figure} of {words.size(size)}, {ratio}", f" {figure}, {ratio}", f" {ratio}", "")
    fitting = next(text for text in behind if width_of(text, font) <= room or not text)
    words_above = Text(place.x, place.y - 0.6 * font, strong=one.whole.label, behind=fitting)
    return Drawing((), tuple(boxes), (Line("frame", (*outline, outline[0])),), (words_above, *inside))
