"""A plan in the landscape: what a pool would hold with it, and above the pool what is too much. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.reporting.render import words
from memwatch.reporting.render.containment import Node
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
