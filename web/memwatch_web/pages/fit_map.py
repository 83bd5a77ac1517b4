"""The map of /fit: the pools of a machine at one scale, as they would be with the planned model in them.

A plan stands on what is used now, with its parts to its right. What is too much stands above the pool's frame.
Pure functions; lengths as in the landscape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.records import MAX_BYTES
from memwatch.core.model import Absent, Device, find_system_ram
from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import FitAnswer
from memwatch.planning.device_totals import pools_of
from memwatch.planning.fit import CPU, FitVerdict
from memwatch.planning.need import PARTS
from memwatch.reporting.render import words
from memwatch.reporting.render.containment import Node, build_nodes, count_columns
from memwatch.reporting.render.drawing import Box, Drawing, Line, Rectangle, Text, shorten, width_of
from memwatch.reporting.render.memory_map import GPU_MEMORY, MemoryMap, build_maps
from memwatch.reporting.render.tower import (
    BESIDE,
    COLUMN_ENDS,
    MIN_CELL,
    MIN_TOWER_PIXELS,
    choose_scale,
    draw_sliver,
    place_boxes,
    write_beside,
    write_inside,
)

# Kinds of bytes that a plan may take.
FREE_KINDS = ("page_cache", "free", "available")
# Parts of a need in the words of a box, and their kinds: those of a model server.
SHORT_WORDS = {
    "denoiser": "denoiser",
    "runtime": "GPU context",
    "processes": "processes",
    "waits_in_ram": "moved here",
}
PART_KINDS = {"weights": "engine-weights", "denoiser": "engine-weights", "kv_cache": "engine-kv_cache"}
# A gap is named where it is this part of a pool; smaller ones are rounding.
MIN_GAP = 0.005
# Less than this part of a plan in a GPU's own memory is drawn in System RAM, with the rest of it.
MIN_PART = 0.02
# More towers than these are left out; more than these have no words beside them.
MAX_TOWERS, MAX_NAMED = 16, 2
PAD, LABELS = 1.2, 3.4
# Narrower drawings have no words beside towers, and leave pools out that are too low for words.
MIN_SLIVERS_WIDTH = 500


class Form(Struct, frozen=True):
    """Size of a drawing in pixels, and of its font."""

    name: str
    width: float
    height: float
    font: float


FORMS = (Form("wide", 1000, 316, 13), Form("narrow", 320, 360, 11.5))


class Place(Struct, frozen=True):
    """Bytes of a plan in one pool. `room_bytes`: what the plan may have there, beside the reserve."""

    need_bytes: int
    room_bytes: int
    reserve_bytes: int = 0
    leased_bytes: int = 0
    parts: Mapping[str, int] = {}

    @property
    def short_bytes(self) -> int:
        return max(0, self.need_bytes - self.room_bytes)


class FitMap(Struct, frozen=True):
    """A drawing in a form, and what it shows in a sentence. `left_out`: names and figures without words in it."""

    form: Form
    drawing: Drawing
    sentence: str
    left_out: tuple[str, ...] = ()


def choose_devices(found: FitAnswer) -> tuple[str, ...]:
    """Return where the plan is drawn: where it fits, else where least is missing, on a GPU before the CPU."""
    if found.fit.split:
        return found.fit.split.devices
    if found.fit.best:
        return (found.fit.best,)
    known = [one for one in found.fit.verdicts if isinstance(one.spare_bytes, int)]
    gpus = [one for one in known if one.device != CPU]
    closest = max(gpus or known, key=spare_of, default=None)
    return (closest.device,) if closest else ()


def spare_of(verdict: FitVerdict) -> int:
    """Return what a device has to spare, less than any figure if that is not known."""
    return verdict.spare_bytes if isinstance(verdict.spare_bytes, int) else -MAX_BYTES


def find_places(found: FitAnswer, snapshot: Snapshot, reserve: int, split: Mapping[str, int]) -> dict[str, Place]:
    """Return the bytes of the plan by pool. `split`: parts on each of several GPUs."""
    names = choose_devices(found)
    ram, places = find_system_ram(snapshot.pools), {}
    verdicts = {one.device: one for one in found.fit.verdicts}
    devices = {one.id: one for one in snapshot.devices}
    beside = 0
    for name in names:
        verdict, room = verdicts[name], verdicts[name].headroom_after_reclaim_bytes
        if isinstance(room, Absent):
            continue
        need = found.fit.split.bytes if found.fit.split else verdict.need_bytes
        parts = _count_parts(found, need, split)
        if name == CPU:
            if ram:
                places[ram.id] = Place(need, max(0, room - reserve), reserve, verdict.leased_bytes, parts)
            continue
        places |= _in_pools(devices[name], snapshot, Place(need, room, reserve, verdict.leased_bytes, parts))
        beside += 0 if ram and ram.id in places else verdict.ram_need_bytes
    if ram and beside and isinstance(ram.available_bytes, int):
        room = max(0, ram.available_bytes - reserve)
        places[ram.id] = Place(beside, room, reserve, parts={"waits_in_ram": beside})
    return places


def _in_pools(device: Device, snapshot: Snapshot, whole: Place) -> Iterator[tuple[str, Place]]:
    """Yield the part in each pool of a GPU: its own memory first, System RAM last."""
    pools = pools_of(device, snapshot)
    ram = find_system_ram(snapshot.pools)
    own = [one for one in pools if one is not ram]
    left, room = whole.need_bytes, whole.room_bytes
    for pool in own if len(pools) > 1 else []:
        taken = min(left, pool.available_bytes if isinstance(pool.available_bytes, int) else 0, room)
        if taken > MIN_PART * whole.need_bytes:
            yield pool.id, Place(taken, taken)
            left, room = left - taken, room - taken
    if last := (pools[-1] if len(pools) == 1 else ram if ram in pools else None):
        yield last.id, replace(whole, need_bytes=left, room_bytes=max(0, room - whole.reserve_bytes))


def _count_parts(found: FitAnswer, need: int, split: Mapping[str, int]) -> dict[str, int]:
    """Return the parts of a need that add up to it, none if they do not: those that take turns."""
    moves = found.need.moves
    for parts in (
        split,
        found.need.parts,
        {one: size - moves.get(one, 0) for one, size in found.need.parts.items()},
    ):
        known = {name: size for name, size in parts.items() if size > 0}
        if sum(known.values()) == need:
            return known
    without = {name: size for name, size in found.need.parts.items() if size > 0 and name != "runtime"}
    return without if sum(without.values()) == need else {}


def build_plan_maps(
    found: FitAnswer | None, snapshot: Snapshot, name: str, reserve: int = 0, split: Mapping[str, int] | None = None
) -> tuple[FitMap, ...]:
    """Return the drawings of a machine with a plan, or as it is without one, in each form.

    `name`: the model's. `split`: the parts of the need on each of several GPUs.
    """
    places = dict(find_places(found, snapshot, reserve, split or {})) if found else {}
    maps = select_maps(build_maps(snapshot, {}), places)
    sentence = describe_places(maps, places, name)
    return tuple(replace(draw_plan(maps, places, name, form), sentence=sentence) for form in FORMS)


def select_maps(maps: Sequence[MemoryMap], places: Mapping[str, Place]) -> list[MemoryMap]:
    """Return the pools to draw: all; of a machine with many GPUs these, or the pools of a plan elsewhere."""
    own = [one for one in maps if one.pool is not None and one.pool.kind in GPU_MEMORY]
    if len(own) <= MAX_NAMED:
        return list(maps)
    planned = [one for one in maps if one.whole.id in places]
    if any(one not in own for one in planned):
        return planned[:MAX_TOWERS]
    kept = [*planned, *(one for one in own if one not in planned)][:MAX_TOWERS]
    return [one for one in own if one in kept]


def describe_places(maps: Sequence[MemoryMap], places: Mapping[str, Place], name: str) -> str:
    """Return what the drawing shows as a sentence."""
    labels = {one.whole.id: one.whole.label for one in maps}
    parts = []
    for pool, place in places.items():
        short = f", {words.size(place.short_bytes)} too much" if place.short_bytes else ""
        parts.append(f"{words.size(place.need_bytes)} in {labels.get(pool, pool)}{short}")
    here = f"{name}: {'; '.join(parts)}. " if parts else ""
    return f"{here}Memory as it is now: {', '.join(labels.values())}."


def draw_plan(maps: Sequence[MemoryMap], places: Mapping[str, Place], name: str, form: Form) -> FitMap:
    """Draw pools beside each other on one ground, each with its part of the plan."""
    font = form.font
    place = Rectangle(0.5, PAD * font, form.width - 1, form.height - (PAD + LABELS) * font)
    highest = max((_height_of(one, places.get(one.whole.id)) for one in maps), default=0)
    over = any(one.short_bytes for one in places.values())
    scale = (place.height - 1.6 * font * over) / highest if highest else choose_scale(maps, place.height)
    high = [one for one in maps if one.whole.id in places or one.whole.size_bytes * scale >= MIN_TOWER_PIXELS]
    low = [one for one in maps if one not in high] if form.width > MIN_SLIVERS_WIDTH else []
    gap, sliver = 1.6 * font, 12.5 * font
    room = place.width - len(low) * sliver
    width = (room + gap) / max(1, len(high))
    many = len(high) > MAX_NAMED or width < MIN_CELL * font or form.width < MIN_SLIVERS_WIDTH
    drawing, x = Drawing(), place.x
    left_out: list[str] = []
    for one in high:
        height = one.whole.size_bytes * scale
        cell = Rectangle(x, place.ground - height, width - gap, height)
        drawn, without_words = draw_pool(one, places.get(one.whole.id), name, cell, font, many)
        drawing += drawn
        if len(high) <= MAX_NAMED:
            of_pool = f" of {one.whole.label}" if len(high) > 1 else ""
            left_out += [f"{text}{of_pool}" for text in without_words]
        x += width
    for one in low:
        drawing += draw_sliver(one, Rectangle(x, place.y, sliver - gap, place.height), scale, font)
        x += sliver
    return FitMap(form, drawing, "", tuple(left_out))


def _height_of(one: MemoryMap, place: Place | None) -> int:
    return one.whole.size_bytes + (place.short_bytes if place else 0)


def draw_pool(
    one: MemoryMap, place: Place | None, name: str, cell: Rectangle, font: float, many: bool
) -> tuple[Drawing, list[str]]:
    """Draw a pool with its part of the plan. `many`: without room for words beside it, which are returned."""
    is_narrow = many and cell.width < MIN_CELL * font / 2
    nodes = build_plan_nodes(one, replace(place, parts={}) if place and is_narrow else place, name)
    columns = COLUMN_ENDS[count_columns(nodes)]
    gutter = 0.0 if many else min(17.5 * font, cell.width * 0.4)
    frame = replace(cell, width=cell.width - gutter)
    inside: list[Text] = []
    beside: list[tuple[float, str, str]] = []
    found = [pair for node in nodes for pair in place_boxes(node, frame, columns, 0)]
    over = draw_excess(one, place, frame, font) if place and place.short_bytes else Drawing()
    lines: list[Line] = []
    for box, node in found:
        seen = replace(box, y=max(box.y, frame.y), height=min(box.height, box.y + box.height - frame.y))
        if seen.height <= 0:
            continue
        is_plan = node.kind == "planned"
        written = write_inside(seen, node, font, some=many or is_plan)
        inside += written
        if is_plan and not written and not over.boxes:
            inside += _write_above(seen, node, font)
        elif not written:
            beside.append((seen.y + seen.height / 2, node.name, words.size(node.size_bytes)))
        if is_plan:
            lines.append(_outline("planned", frame.x, box.y, frame.right, box.y + box.height))
    drawing = Drawing((), tuple(box for box, _ in found), (), tuple(inside)) + over
    drawing += Drawing(lines=(_outline("frame", frame.x, frame.y, frame.right, frame.ground), *lines))
    if gutter:
        drawing += write_beside(beside, frame, gutter - BESIDE, font)
    left_out = [] if gutter else [f"{word} {figure}" for _, word, figure in beside]
    return drawing + Drawing(texts=tuple(_write_labels(one, cell, font))), left_out


def _write_above(box: Box, node: Node, font: float) -> Iterator[Text]:
    """Yield the name and size of a plan above its box, if there is room beside each other."""
    figure = words.size(node.size_bytes)
    left = box.width - width_of(f" {figure}", font) - font
    if left > 3 * font:
        name = shorten(node.name, left, font, strong=True)
        yield Text(box.x + 0.5 * font, box.y - 0.45 * font, strong=name, behind=f" {figure}", kind="free")


def _outline(kind: str, left: float, top: float, right: float, ground: float) -> Line:
    return Line(kind, ((left, ground), (left, top), (right, top), (right, ground), (left, ground)))


def draw_excess(one: MemoryMap, place: Place, frame: Rectangle, font: float) -> Drawing:
    """Draw what is too much above the frame of its pool, and how much it is in words above it."""
    height = place.short_bytes * frame.height / one.whole.size_bytes
    size, figure = place.short_bytes, words.size(place.short_bytes)
    title = f"more than fits now: {figure}"
    box = Box(frame.x, frame.y - height, frame.width, height, size, "level-critical", 0, title)
    texts = (f"{figure} more than fits now", f"{figure} too much", f"+{figure}", figure)
    text = next((one for one in texts if width_of(one, font, strong=True) <= frame.width), "")
    at = box.y + min(height / 2 + 0.36 * font, 1.4 * font) if height >= 1.5 * font else box.y - 0.45 * font
    kind = "level-critical" if height >= 1.5 * font else "critical"
    return Drawing((), (box,), (), (Text(frame.x + 0.5 * font, at, strong=text, kind=kind),))


def build_plan_nodes(one: MemoryMap, place: Place | None, name: str) -> tuple[Node, ...]:
    """Return what a pool holds with its part of the plan: what is used now, the plan, and what is left."""
    nodes = build_nodes(one)
    if place is None or one.slices:
        return nodes
    size = one.whole.size_bytes
    used = tuple(node for node in nodes if node.kind not in FREE_KINDS)
    end = max((node.start + node.part for node in used), default=0.0)
    start = max(end, 1 - place.room_bytes / size)
    gap = round((start - end) * size)
    found = list(used)
    if gap > MIN_GAP * size:
        found.append(Node("kept", end, start - end, gap, _name_gap(place)))
    found.append(_build_plan(name, start, size, place))
    left = size - round(start * size) - place.need_bytes
    if left > 0:
        found.append(Node("free", 1 - left / size, left / size, left, "left"))
    return tuple(found)


def _name_gap(place: Place) -> str:
    named = {"leased to others": place.leased_bytes, "reserve": place.reserve_bytes}
    given = [word for word, size in named.items() if size]
    return " and ".join(given) or "not for programs"


def _build_plan(name: str, start: float, size: int, place: Place) -> Node:
    whole = Node("planned", start, place.need_bytes / size, place.need_bytes, name, ("planned",))
    inside, at = [], start
    for part, count in place.parts.items():
        word = SHORT_WORDS.get(part, PARTS[part])
        kind = PART_KINDS.get(part, "planned-part")
        inside.append(Node(kind, at, count / size, count, word))
        at += count / size
    return replace(whole, inside=tuple(inside)) if len(inside) > 1 else whole


def _write_labels(one: MemoryMap, cell: Rectangle, font: float) -> Iterator[Text]:
    """Yield the pool's name and size below the ground."""
    names = (one.whole.label, one.whole.id, one.whole.label.rpartition(" ")[2])
    label = next((text for text in names if width_of(text, font, strong=True) <= cell.width), "")
    yield Text(cell.x, cell.ground + 1.4 * font, strong=label or shorten(names[0], cell.width, font, strong=True))
    figure, used = words.size(one.whole.size_bytes), one.whole.used_bytes
    now = "" if isinstance(used, Absent) else f"{words.size(used)} used of "
    longest = next((text for text in (f"{now}{figure}", figure) if width_of(text, font) <= cell.width), "")
    yield Text(cell.x, cell.ground + 2.7 * font, plain=longest, kind="muted")
