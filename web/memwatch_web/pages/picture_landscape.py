"""The landscape of the shareable picture: all pools on one ground at one scale, each with its past.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from memwatch.core.model import Absent, PoolKind
from memwatch.reporting.render import words
from memwatch.reporting.render.axes import list_bytes, list_thresholds
from memwatch.reporting.render.containment import Growing
from memwatch.reporting.render.drawing import Drawing, Rectangle, Text, shorten, width_of
from memwatch.reporting.render.memory_map import MemoryMap, split_gpus
from memwatch.reporting.render.past import Past
from memwatch.reporting.render.tower import (
    BAND_LINES,
    MAX_CELLS,
    MAX_NAMED_POOLS,
    MIN_CELL,
    MIN_TOWER_PIXELS,
    choose_scale,
    draw_band,
    draw_captions,
    draw_sliver,
    draw_tower,
    join_past,
)
from memwatch_web.pages.past_picture import draw_past_picture, place_past_picture


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
            drawing += Drawing(
                texts=tuple(list_bytes(one.whole.size_bytes, Rectangle(x, top, 0, place.ground - top), font))
            )
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
    frame = Rectangle(ground.x + axis, ground.y, before, height)
    now = Rectangle(frame.right + marks, ground.y, left - before - marks, height)
    drawing, room = Drawing(), ground.width - axis
    if past is not None:
        found = draw_past_picture(one, past, height, before, ground.y, font, not many)
        drawing += place_past_picture(one, found, frame, font)
        if any(word.unix is not None for word in found.words):  # when it is full, on the line of the title
            room = before - width_of("full ~00:00:00 ", font, strong=True)
    if marks:
        drawing += join_past(one, now, frame.right)
        drawing += Drawing(
            texts=tuple(
                Text(now.x - 0.4 * font, mark.word_y + 0.36 * font, plain=mark.word, anchor="end", kind=mark.level)
                for mark in list_thresholds(one, frame, font)
            )
        )
    drawing += draw_tower(one, now, gutter, font, growing)
    if not many:
        drawing += draw_captions(one, now, font)
        drawing += Drawing(texts=tuple(list_bytes(one.whole.size_bytes, frame, font)))
    is_titled = many or past is not None
    return drawing + _draw_title(one, frame.x, ground.y, room, font, many) if is_titled else drawing


def _draw_title(one: MemoryMap, x: float, top: float, room: float, font: float, many: bool) -> Drawing:
    y, whole = top - (1.1 if many else 2.24) * font, one.whole
    if isinstance(whole.used_bytes, Absent):
        figure = words.absent(whole.used_bytes)
    elif many:
        figure = words.ratio(whole.used_bytes / whole.size_bytes) if whole.size_bytes else ""
    else:
        figure = words.size(whole.size_bytes)
    if width_of(f"{whole.label} ", font, strong=True) + width_of(figure, font) > room:
        figure = ""
    label = shorten(whole.label, room, font, strong=True)
    return Drawing(texts=(Text(x, y, strong=label, behind=f" {figure}" if figure else ""),))
