"""The landscape on a page: each pool as a tower of a fixed width, joined to a past as wide as the page leaves.

Heights are pixels at one scale. Lengths across the past are in UNITS from its left edge to its right one, so that
one drawing fits every width. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, PoolKind
from memwatch.reporting.render import words
from memwatch.reporting.render.actions import Action
from memwatch.reporting.render.containment import Growing
from memwatch.reporting.render.drawing import (
    LINE_HEIGHT,
    Box,
    Drawing,
    Line,
    Rectangle,
    Text,
    Threshold,
    list_bytes,
    list_thresholds,
    shorten,
    width_of,
)
from memwatch.reporting.render.engine_view import describe_load, engines_in
from memwatch.reporting.render.memory_map import MemoryMap, split_gpus
from memwatch.reporting.render.past import Past
from memwatch.reporting.render.tower import (
    MAX_CELLS,
    MIN_TOWER_PIXELS,
    Block,
    Link,
    draw_band,
    draw_captions,
    draw_cell,
    join_past,
    list_wordless,
    place_tower,
    write_gutter,
)
from memwatch_web.pages.overview import Ghost
from memwatch_web.pages.past_picture import NARROW_PAST, WIDE_PAST, PastPicture, draw_past_picture
from memwatch_web.pages.planned import (
    Planned,
    count_drawn,
    count_excess,
    describe_planned,
    draw_plan,
    list_planned,
    outline_plan,
)

FONT = 11.0
# Heights in pixels: of a tower alone, of the largest of several, of one of many GPUs, and of those of more than a
# row. The overview is one screen at 1440 × 900.
TOWER, TOWER_OF_SEVERAL, CELL, LOW_CELL = 348.0, 312.0, 214.0, 103.0
CELLS_OF_A_ROW = 8
# Above and below a tower: words of the past and of the columns, and times.
TOP, BOTTOM, CELL_BOTTOM = 44.0, 20.0, 17.0
CELL_TOP = 8.0
# Widths in pixels: of the marks between past and now, of a tower alone, beside a lower one, and of several, and of
# the words beside them. They do not depend on what a pool holds: nothing moves when that changes.
AXIS, MARKS, MARKS_NARROW = 40.0, 52.0, 18.0
ALONE, BESIDE_LOW, OF_SEVERAL = 460.0, 330.0, 224.0
NARROW, CELL_WIDTH, CELL_ALONE = 218.0, 80.0, 112.0
# Without a past, four GPUs stand in a row on a phone. Their highest is as high as this there.
CELL_NARROW, CELL_NARROW_HEIGHT = 74.0, LOW_CELL
# Ends of the columns of a narrow tower, in parts of its width.
NARROW_ENDS = {1: (1.0,), 2: (0.4, 1.0), 3: (0.376, 0.656, 1.0)}
GUTTER, GUTTER_OF_SEVERAL = 190.0, 178.0
# A lower tower is drawn again larger, beside its place, and as high as this at most.
LOUPE = 190.0
LOUPE_WIDTH = 150.0
# Beside GPUs whose towers would be lower than this, System RAM is drawn at a whole part of their scale.
MIN_GPU_TOWER = 80.0
# Widths of a pool that lies on its side.
BANDS = (1358.0, 700.0, 264.0)
BAND_HEIGHT, BAND_TOP = 28.0, 22.0


class Now(Struct, frozen=True):
    """The contents of a pool, with the marks on its left. `width` and `height` of the picture in pixels.

    `left_out`: names and figures of bytes without words in it.
    """

    width: float
    height: float
    drawing: Drawing
    marks: tuple[Threshold, ...] = ()
    links: tuple[Link, ...] = ()
    left_out: tuple[str, ...] = ()


class PageTower(Struct, frozen=True):
    """One pool on a page. `height`: of its bytes. `narrow`: the picture for a phone, None where one fits both.

    `figure`: what is used, or why that is not known. `ratio`: words about another scale.
    """

    map: MemoryMap
    title: str
    figure: str
    height: float
    axis: tuple[Text, ...]
    past: PastPicture | None
    now: Now
    narrow: Now | None
    ratio: str = ""


class Sliver(Struct, frozen=True):
    """A pool too low for words: to scale, and drawn again at `factor` times that."""

    map: MemoryMap
    title: str
    figure: str
    factor: int
    height: float
    drawing: Drawing
    loupe: Now


class PageBand(Struct, frozen=True):
    """System RAM on its side, for several widths of the page, widest first. `planned`: what it would hold, in
    words."""

    map: MemoryMap
    widths: tuple[Now, ...]
    planned: tuple[str, ...] = ()


class PageLandscape(Struct, frozen=True):
    """All pools. `cells`: towers without words beside them, several in a row. `more`: pools that are not drawn."""

    towers: tuple[PageTower, ...]
    slivers: tuple[Sliver, ...] = ()
    bands: tuple[PageBand, ...] = ()
    cells: bool = False
    more: int = 0

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return what has no word in the towers of many GPUs on a phone: "VRAM 0, 1, 2: reserved 479.0 MiB"."""
        found: dict[str, list[str]] = {}
        for one in self.towers if self.cells else ():
            if words_of_it := ", ".join((one.narrow or one.now).left_out):
                found.setdefault(words_of_it, []).append(one.title)
        return tuple(f"{join_titles(titles)}: {words_of_it}" for words_of_it, titles in found.items())


def join_titles(titles: Sequence[str]) -> str:
    """Join the titles of pools: "VRAM 0, 1, 2"."""
    start = titles[0].rpartition(" ")[0]
    same = all(one.rpartition(" ")[0] == start for one in titles)
    return ", ".join([titles[0], *(one.rpartition(" ")[2] if same else one for one in titles[1:])])


class Scene(Struct, frozen=True):
    """State of the pools: pasts and the growing process by pool, levels by target, killed processes, engines.

    `actions`: what frees memory of the worst target. `plans`: what pools would hold. `alone`: without their pasts.
    """

    pasts: Mapping[str, Past] = {}
    growing: Mapping[str, Growing] = {}
    levels: Mapping[str, str] = {}
    ghosts: tuple[Ghost, ...] = ()
    engines: tuple[Engine, ...] = ()
    actions: tuple[Action, ...] = ()
    plans: Mapping[str, Planned] = {}
    alone: bool = False


def draw_page(maps: Sequence[MemoryMap], scene: Scene) -> PageLandscape:
    """Draw all pools at one scale, each with its past."""
    maps = [one for one in maps if one.whole.size_bytes]
    gpus, others = split_gpus(maps)
    if gpus:
        return _draw_many(gpus, others, scene)
    highest = TOWER if len(maps) == 1 else TOWER_OF_SEVERAL
    parts = _choose_parts(maps)
    scale = min((highest * parts[one.whole.id] / count_drawn(one, scene.plans) for one in maps), default=0.0)
    scales = {one.whole.id: scale / parts[one.whole.id] for one in maps}
    high = [one for one in maps if one.whole.size_bytes * scales[one.whole.id] >= MIN_TOWER_PIXELS]
    low = [one for one in maps if one not in high]
    width = OF_SEVERAL if len(high) > 1 else BESIDE_LOW if low else ALONE
    return PageLandscape(
        tuple(_draw_tower(one, scales[one.whole.id], scene, width, parts[one.whole.id]) for one in high),
        tuple(_draw_sliver(one, scale, scene) for one in low),
    )


def _choose_parts(maps: Sequence[MemoryMap]) -> dict[str, int]:
    """Return by how many the scale of each pool is divided: 1, and more for System RAM beside a small GPU."""
    parts = {one.whole.id: 1 for one in maps}
    gpus = [one.whole.size_bytes for one in maps if _is_gpu(one)]
    for one in maps:
        if gpus and not _is_gpu(one) and one.whole.size_bytes > max(gpus):
            height = TOWER_OF_SEVERAL * min(gpus) / one.whole.size_bytes
            parts[one.whole.id] = max(1, math.ceil(MIN_GPU_TOWER / height))
    return parts


def _is_gpu(one: MemoryMap) -> bool:
    return one.pool is not None and one.pool.kind in (PoolKind.VRAM, PoolKind.HBM)


def _draw_many(gpus: Sequence[MemoryMap], others: Sequence[MemoryMap], scene: Scene) -> PageLandscape:
    lying = [one for one in others if one.pool is not None and one.pool.kind is PoolKind.SYSTEM_RAM]
    cells = [*gpus, *(one for one in others if one not in lying)]
    chosen = sorted(cells, key=lambda one: one.whole.id not in scene.plans)[:MAX_CELLS]
    shown = [one for one in cells if one in chosen]
    height = CELL if len(shown) <= CELLS_OF_A_ROW else LOW_CELL
    scale = height / max(count_drawn(one, scene.plans) for one in shown)
    narrow = scale * CELL_NARROW_HEIGHT / height if scene.alone else scale
    return PageLandscape(
        tuple(_draw_cell(one, scale, narrow, scene) for one in shown),
        bands=tuple(_draw_band(one, (scale, scale, narrow), scene) for one in lying),
        cells=True,
        more=len(cells) - len(shown),
    )


def _draw_tower(one: MemoryMap, scale: float, scene: Scene, width: float, part: int) -> PageTower:
    height = one.whole.size_bytes * scale
    past = scene.pasts.get(one.whole.id)
    top = TOP + count_excess(one, scene.plans) * scale
    return PageTower(
        map=one,
        title=one.whole.label,
        figure=words.size(one.whole.size_bytes),
        height=height,
        axis=tuple(list_bytes(one.whole.size_bytes, Rectangle(AXIS, top, 0.0, height), FONT)),
        past=None if past is None else _draw_past(one, past, height, width != OF_SEVERAL),
        now=_draw_now(one, height, scene, width),
        narrow=_draw_narrow(one, height, scene),
        ratio=f"drawn at 1/{part} of the GPU’s scale" if part > 1 else "",
    )


def _draw_cell(one: MemoryMap, scale: float, narrow: float, scene: Scene) -> PageTower:
    height = one.whole.size_bytes * scale
    past = scene.pasts.get(one.whole.id)
    return PageTower(
        map=one,
        title=one.whole.label,
        figure=_describe_use(one),
        height=height,
        axis=(),
        past=None if past is None else _draw_past(one, past, height, False, CELL_TOP),
        now=_draw_cell_now(one, scale, scene, CELL_ALONE if scene.alone else CELL_WIDTH),
        narrow=_draw_cell_now(one, narrow, scene, CELL_NARROW) if scene.alone else None,
    )


def _draw_cell_now(one: MemoryMap, scale: float, scene: Scene, width: float) -> Now:
    height = one.whole.size_bytes * scale
    top = CELL_TOP + count_excess(one, scene.plans) * scale
    frame = Rectangle(0.0, top, width, height)
    nodes = list_planned(one, scene.plans, with_parts=False)
    drawing = draw_cell(one, frame, FONT, _growing_in(one, scene), scene.levels, nodes)
    drawing += draw_plan(one, frame, drawing, scene.plans, FONT)
    left_out = tuple(list_wordless(drawing))
    return Now(width + 1.0, top + height + CELL_BOTTOM, drawing, left_out=left_out)


def _describe_use(one: MemoryMap) -> str:
    used, size = one.whole.used_bytes, one.whole.size_bytes
    if isinstance(used, Absent):
        return words.absent(used)
    return f"{words.size_within(used, size)} of {words.size(size)}"


def _growing_in(one: MemoryMap, scene: Scene) -> Growing | None:
    return scene.growing.get(one.whole.id)


def _draw_now(one: MemoryMap, height: float, scene: Scene, width: float) -> Now:
    growing = _growing_in(one, scene)
    several = width == OF_SEVERAL
    gutter = GUTTER_OF_SEVERAL if several else GUTTER
    nodes = list_planned(one, scene.plans)
    top = TOP + count_excess(one, scene.plans) * height / one.whole.size_bytes
    frame = Rectangle(MARKS, top, width, height)
    tower = place_tower(one, frame, gutter, FONT, growing, nodes=nodes, levels=scene.levels)
    if nodes and any(note.name == scene.plans[one.whole.id].name for note in tower.notes):
        # The name of a plan stands in its box rather than its parts.
        nodes = list_planned(one, scene.plans, with_parts=False)
        tower = place_tower(one, frame, gutter, FONT, growing, nodes=nodes, levels=scene.levels)
    blocks = [note.block for note in tower.notes]
    blocks += _list_actions(one, tower.drawing, scene)
    blocks += _list_engines(one, tower.drawing, scene, several)
    beside, links = write_gutter(blocks, frame, gutter, FONT, top - 12.0)
    above = replace(frame, y=TOP)
    drawing = _join_past(one, frame, scene) + tower.drawing + beside + draw_captions(one, above, FONT, nodes=nodes)
    drawing += _draw_ghosts(one, frame, scene) + _draw_leases(one, frame)
    drawing += draw_plan(one, frame, drawing, scene.plans, FONT)
    return Now(
        MARKS + width + gutter, top + height + BOTTOM, drawing, tuple(list_thresholds(one, frame, FONT)), links
    )


def _draw_narrow(one: MemoryMap, height: float, scene: Scene) -> Now:
    nodes = list_planned(one, scene.plans, with_parts=False)
    top = TOP + count_excess(one, scene.plans) * height / one.whole.size_bytes
    frame = Rectangle(MARKS_NARROW, top, NARROW, height)
    growing, levels = _growing_in(one, scene), scene.levels
    tower = place_tower(one, frame, 0.0, FONT, growing, NARROW_ENDS, some=False, nodes=nodes, levels=levels)
    above = replace(frame, y=TOP)
    drawing = _join_past(one, frame, scene) + tower.drawing + draw_captions(one, above, FONT, NARROW_ENDS, nodes)
    drawing += _draw_ghosts(one, frame, scene) + _draw_leases(one, frame)
    drawing += draw_plan(one, frame, drawing, scene.plans, FONT)
    marks = tuple(replace(mark, word="") for mark in list_thresholds(one, frame, FONT))
    left_out = tuple(f"{note.name} {note.figure}" for note in tower.notes)
    return Now(MARKS_NARROW + NARROW + 1.0, top + height + BOTTOM, drawing, marks, left_out=left_out)


def _join_past(one: MemoryMap, frame: Rectangle, scene: Scene) -> Drawing:
    return Drawing() if scene.alone else join_past(one, frame, 0.0)


def _draw_ghosts(one: MemoryMap, frame: Rectangle, scene: Scene) -> Drawing:
    """Draw the outline of what a killed process held, above used memory."""
    mine = [ghost for ghost in scene.ghosts if ghost.pool == one.whole.id]
    if not mine or isinstance(one.edge, Absent):
        return Drawing()
    ghost = mine[-1]
    height = min(1.0 - one.edge, ghost.size_bytes / one.whole.size_bytes) * frame.height
    width = min(frame.width * 0.58, 150.0)
    left, ground = frame.right - width - 4.0, frame.ground - one.edge * frame.height
    corners = ((left, ground), (left, ground - height), (left + width, ground - height), (left + width, ground))
    end, size = "killed, ", words.change(-ghost.size_bytes)
    fits = width_of(end + size, FONT, strong=True) <= width - 10.0
    lines = [ghost.name, end + size] if fits else [ghost.name, end, size]
    rows = int((height - 4.0) / (LINE_HEIGHT * FONT))
    texts = tuple(
        Text(
            left + 6.0,
            ground - height + 13.0 + row * LINE_HEIGHT * FONT,
            strong=shorten(word, width - 10.0, FONT, strong=True),
            kind="ghost",
        )
        for row, word in enumerate(lines[:rows])
    )
    return Drawing(lines=(Line("ghost", (*corners, corners[0])),), texts=texts)


def _draw_leases(one: MemoryMap, frame: Rectangle) -> Drawing:
    """Draw promised bytes over available ones, on the right."""
    return Drawing(
        boxes=tuple(
            Box(
                frame.right - 0.3 * frame.width,
                frame.ground - (lease.start + lease.width) * frame.height,
                0.3 * frame.width,
                lease.width * frame.height,
                round(lease.width * one.whole.size_bytes),
                "leased",
                1,
                f"leased to {lease.lease.name}: {words.size(lease.held_bytes)}",
            )
            for lease in one.leases
            if lease.width
        )
    )


def _list_actions(one: MemoryMap, drawing: Drawing, scene: Scene) -> Iterator[Block]:
    """Yield each action that frees memory of the pool, and the level that follows, over the bytes that it frees."""
    for action in scene.actions:
        if action.target != one.whole.id or action.process is None:
            continue
        link = f"processes/{action.process.pid}"
        mine = [box for box in drawing.boxes if box.link == link]
        if action.kind == "option":
            spans = [
                (box.y, box.y + min(box.height, box.height * action.freed.low_bytes / box.size_bytes))
                for box in mine
                if box.kind == "engine-kv_reserved" and box.size_bytes
            ]
            words_of_it, link = action.subject, f"{link}#kv"
        else:
            whole = [box for box in mine if not box.kind.startswith("engine")]
            spans = sorted(((box.y, box.y + box.height) for box in whole), key=lambda span: span[0] - span[1])
            words_of_it = f"stop {action.subject}"
        if not spans:
            continue
        lines = [(words_of_it, ""), (f"−{action.freed.text}", "")]
        if action.outcome:
            lines.append((action.outcome, ""))
        yield Block(sum(spans[0]) / 2, tuple(lines), tuple(spans), link)


def _list_engines(one: MemoryMap, drawing: Drawing, scene: Scene, several: bool) -> Iterator[Block]:
    """Yield the load of each model server in the pool, beside its lowest part."""
    places = {one.whole.id, *(row.share.id for row in one.rows)}
    for engine in engines_in(scene.engines, places):
        boxes = [box for box in drawing.boxes if box.link in {f"processes/{pid}" for pid in engine.pids}]
        if boxes:
            low = max(boxes, key=lambda box: (box.depth, box.y))
            name, *load = describe_load(engine)
            if width_of(name, FONT, strong=True) > GUTTER_OF_SEVERAL - 16.0:
                name = engine.title
            lines = (("", name), *((line, "") for line in load[: 2 if several else 4]))
            yield Block(low.y + low.height / 2, lines)


def _draw_past(one: MemoryMap, past: Past, height: float, wide: bool, top: float = TOP) -> PastPicture:
    width = WIDE_PAST if wide else NARROW_PAST
    return draw_past_picture(one, past, height, width, top, FONT, wide)


def _draw_sliver(one: MemoryMap, scale: float, scene: Scene) -> Sliver:
    """Draw a pool that is too low for words: to scale, and at a whole number times that."""
    height = one.whole.size_bytes * scale
    factor = max(1, int(LOUPE / height)) if height > 0 else 1
    if factor >= 8:
        factor = 1 << (factor.bit_length() - 1)
    nodes = list_planned(one, scene.plans, with_parts=False)
    small = place_tower(one, Rectangle(0.0, 0.0, 44.0, height), 0.0, FONT, nodes=nodes)
    frame = Rectangle(0.0, 1.0, LOUPE_WIDTH, height * factor)
    large = place_tower(one, frame, 0.0, FONT, _growing_in(one, scene), nodes=nodes)
    return Sliver(
        one,
        one.whole.label,
        _describe_use(one),
        factor,
        height,
        replace(small.drawing, texts=(), lines=small.drawing.lines[:1]),
        Now(
            LOUPE_WIDTH + 1.0,
            frame.height + 2.0,
            large.drawing,
            left_out=tuple(f"{note.name} {note.figure}" for note in large.notes),
        ),
    )


def _draw_band(one: MemoryMap, scales: Sequence[float], scene: Scene) -> PageBand:
    found = []
    for width, scale in zip(BANDS, scales, strict=True):
        place = Rectangle(1.0, BAND_TOP, width - 2.0, BAND_HEIGHT)
        drawing = draw_band(one, place, scale, FONT, list_planned(one, scene.plans))
        drawing += outline_plan(drawing)
        found.append(Now(width, BAND_TOP + BAND_HEIGHT + 2.0, drawing))
    return PageBand(one, tuple(found), describe_planned(one, scene.plans))
