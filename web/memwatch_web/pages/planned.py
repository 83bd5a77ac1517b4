"""A plan in the landscape: what a pool would hold with it, and above the pool what is too much. Pure functions.

A plan of /fit is on what is used now, with its parts to its right.
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
from memwatch.reporting.render.containment import Node, build_nodes
from memwatch.reporting.render.drawing import LINE_HEIGHT, Box, Drawing, Rectangle, Text, outline, width_of
from memwatch.reporting.render.memory_map import MemoryMap

# Kinds of bytes: of a plan, and those for which there is no room.
PLANNED, EXCESS = "planned", "level-critical"


class Planned(Struct, frozen=True):
    """Contents of a pool with a plan of that name, and the bytes of the plan for which it has no room."""

    name: str
    nodes: tuple[Node, ...]
    short_bytes: int = 0


Plans = Mapping[str, Planned]


def list_planned(one: MemoryMap, plans: Plans, with_parts: bool = True) -> tuple[Node, ...]:
    """Return what a pool would hold, none without a plan. `with_parts`: the plan's, beside its name."""
    plan = plans.get(one.whole.id)
    nodes = plan.nodes if plan else ()
    return nodes if with_parts else tuple(replace(n, inside=()) if n.kind == PLANNED else n for n in nodes)


def count_excess(one: MemoryMap, plans: Plans) -> int:
    """Return the bytes that are drawn above a pool, at most as many as it has."""
    plan = plans.get(one.whole.id)
    return min(plan.short_bytes, one.whole.size_bytes) if plan else 0


def count_drawn(one: MemoryMap, plans: Plans) -> int:
    return one.whole.size_bytes + count_excess(one, plans)


def describe_planned(one: MemoryMap, plans: Plans) -> tuple[str, ...]:
    """Return what a pool would hold in words, none without a plan."""
    plan = plans.get(one.whole.id)
    if plan is None:
        return ()
    short = (f"{words.size(plan.short_bytes)} more than fits now",) if plan.short_bytes else ()
    return (*(f"{node.name} {words.size(node.size_bytes)}" for node in plan.nodes), *short)


def draw_plan(one: MemoryMap, frame: Rectangle, tower: Drawing, plans: Plans, font: float) -> Drawing:
    """Draw the outline of a plan in a tower, with what is too much above it."""
    plan = plans.get(one.whole.id)
    if plan is None:
        return Drawing()
    over = _draw_excess(plan, count_excess(one, plans), one.whole.size_bytes, frame, font)
    return over + outline_plan(tower + over, frame)


def outline_plan(drawing: Drawing, frame: Rectangle | None = None) -> Drawing:
    """Return a border around a plan, as wide as its tower, above which a part may stand, or as its own box."""
    found = [box for box in drawing.boxes if not box.depth and (box.kind.startswith(PLANNED) or box.kind == EXCESS)]
    if not found:
        return Drawing()
    top, ground = min(box.y for box in found), max(box.y + box.height for box in found)
    across = frame or found[0]
    border = outline(Rectangle(across.x, top, across.width, ground - top))
    return Drawing(lines=(replace(border, kind=PLANNED),))


def _draw_excess(plan: Planned, drawn: int, size_bytes: int, frame: Rectangle, font: float) -> Drawing:
    """Draw these bytes above the frame. `//`: they are cut at the size of the pool."""
    if not drawn:
        return Drawing()
    height, figure = drawn * frame.height / size_bytes, words.size(plan.short_bytes)
    cut = "// " if plan.short_bytes > drawn else ""
    title = f"{cut}{figure} more than fits now"
    box = Box(frame.x, frame.y - height, frame.width, height, drawn, EXCESS, 0, title)
    named = f"{cut}{plan.name}: {figure} more than fits now"
    texts = (named, title, f"{cut}{figure} too much", f"{cut}+{figure}")
    fitting = [text for text in texts if width_of(text, font, strong=True) <= frame.width - font]
    is_high = height >= LINE_HEIGHT * font
    y, kind = (box.y + 1.1 * font, box.kind) if is_high else (box.y - 0.36 * font, "critical")
    text = Text(frame.x + 0.5 * font, y, strong=fitting[0] if fitting else figure, kind=kind)
    return Drawing((), (box,), (), (text,))


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


def plan_pools(
    found: FitAnswer,
    maps: Sequence[MemoryMap],
    snapshot: Snapshot,
    name: str,
    reserve: int = 0,
    split: Mapping[str, int] | None = None,
) -> tuple[dict[str, Planned], str]:
    """Return what pools would hold with a plan, and that as a sentence.

    `name`: the model's. `split`: the parts of the need on each of several GPUs.
    """
    places = find_places(found, snapshot, reserve, split or {})
    plans = {
        one.whole.id: Planned(
            name, build_plan_nodes(one, places[one.whole.id], name), places[one.whole.id].short_bytes
        )
        for one in maps
        if one.whole.id in places and one.whole.size_bytes and not one.slices
    }
    return plans, describe_places(maps, places, name)


def describe_places(maps: Sequence[MemoryMap], places: Mapping[str, Place], name: str) -> str:
    """Return what the drawing shows as a sentence."""
    labels = {one.whole.id: one.whole.label for one in maps}
    parts = []
    for pool, place in places.items():
        short = f", {words.size(place.short_bytes)} too much" if place.short_bytes else ""
        parts.append(f"{words.size(place.need_bytes)} in {labels.get(pool, pool)}{short}")
    here = f"{name}: {'; '.join(parts)}. " if parts else ""
    return f"{here}Memory as it is now: {', '.join(labels.values())}."


def build_plan_nodes(one: MemoryMap, place: Place, name: str) -> tuple[Node, ...]:
    """Return what a pool holds with its part of the plan: what is used now, the plan, and what is left."""
    size = one.whole.size_bytes
    used = tuple(node for node in build_nodes(one) if node.kind not in FREE_KINDS)
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
    """Return the bytes that the pool has room for: the others stand above it, and parts are those of all."""
    taken = min(place.need_bytes, size - round(start * size))
    if taken < place.need_bytes:
        details = (f"of {words.size(place.need_bytes)}",)
        return Node(PLANNED, start, taken / size, taken, f"{name}: fits now", details)
    whole = Node(PLANNED, start, taken / size, taken, name, ("planned",))
    inside, at = [], start
    for part, count in place.parts.items():
        word = SHORT_WORDS.get(part, PARTS[part])
        kind = PART_KINDS.get(part, "planned-part")
        inside.append(Node(kind, at, count / size, count, word))
        at += count / size
    return replace(whole, inside=tuple(inside)) if len(inside) > 1 else whole
