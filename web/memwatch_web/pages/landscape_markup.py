"""Attributes and words of the landscape on a page: classes, paths, headings. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from memwatch.core.model import Absent, Device
from memwatch.core.snapshot import Pressure, Snapshot
from memwatch.core.units import GIB
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import MemoryMap
from memwatch_web.pages.landscape_page import PageLandscape, PageTower

# A time of the past whose figure is in words, and how near to it a reading is.
THEN_SECONDS, NEAR_SECONDS = 180.0, 10.0
BREAKS = re.compile(r"\n\s*")
# Kinds that are drawn as a pattern of the page.
PATTERNS = {
    "page_cache": "cache",
    "engine-kv_reserved": "reserved",
    "leased": "leased",
    "unknown": "unknown",
}


class PagePaint:
    """Classes of the shapes of a drawing. The style sheet has their colours."""

    links = True

    @staticmethod
    def fill(kind: str) -> Markup:
        pattern = f' fill="url(#{PATTERNS[kind]})"' if kind in PATTERNS else ""
        return Markup('class="b-{}"').format(kind) + Markup(pattern)  # noqa: S704  a constant

    @staticmethod
    def stroke(kind: str) -> Markup:
        return Markup('class="l-{}"').format(kind)

    @staticmethod
    def words(kind: str) -> Markup:
        return Markup('class="t-{}"').format(kind) if kind else Markup("")

    @staticmethod
    def strong(is_beside: bool) -> Markup:
        """`is_beside`: plain words stand before the strong ones."""
        return Markup('class="strong beside"') if is_beside else Markup('class="strong"')


def pixels(length: float) -> str:
    """Format a length to a tenth: 12.0 is "12"."""
    return f"{length:.1f}".removesuffix(".0")


def gib(size_bytes: int) -> str:
    """Format bytes in GiB to a MiB: "37.021"."""
    return f"{size_bytes / GIB:.3f}".rstrip("0").rstrip(".")


def compact(markup: str) -> Markup:
    """Return markup without line breaks and the spaces behind them: each line is one more field of an event."""
    return Markup(BREAKS.sub("", markup))  # noqa: S704  escaped by the template


def path(points: Sequence[tuple[float, float]]) -> str:
    """Format points as a path."""
    return "M" + "L".join(f"{pixels(x)} {pixels(y)}" for x, y in points)


def steps(points: Sequence[tuple[float, float]]) -> str:
    """Format points as a path of steps. A path moved in time differs from itself in its begin only."""
    (x, y), *others = points
    return f"M{pixels(x)} {pixels(y)}" + "".join(_list_steps((x, y), others))


def _list_steps(start: tuple[float, float], others: Sequence[tuple[float, float]]) -> Iterator[str]:
    x, y = start
    for to_x, to_y in others:
        right, down = to_x - x, to_y - y
        yield (
            f"h{pixels(right)}"
            if not down
            else f"v{pixels(down)}"
            if not right
            else f"l{pixels(right)} {pixels(down)}"
        )
        x, y = to_x, to_y


def maps_of(found: PageLandscape) -> tuple[MemoryMap, ...]:
    """Return the maps of a landscape in their order."""
    towers = tuple(one.map for one in found.towers)
    return (*towers, *(one.map for one in found.slivers), *(one.map for one in found.bands))


def worst_level(one: MemoryMap, pressure: Mapping[str, Pressure]) -> str:
    """Return the worst level of a pool and its MIG instances, "unknown" without one."""
    targets = (one.whole.id, *(piece.share.id for piece in one.slices))
    levels = [pressure[target].level for target in targets if target in pressure]
    return max(levels).word if levels else "unknown"


def describe_room(one: MemoryMap) -> str:
    """Say what is left of a GPU: "13.2 GiB left", or the largest room of a MIG instance: "max 9.5 GiB free"."""
    if not one.slices:
        return f"{words.size(one.whole.available_bytes)} left"
    left = [size for piece in one.slices if not isinstance(size := piece.share.left_bytes, Absent)]
    return f"max {words.size(max(left))} free" if left else words.count(len(one.slices), "slice")


def heading(found: PageLandscape, snapshot: Snapshot) -> Markup:
    """Return the title of the picture: the only pool, or what stands beside what."""
    maps = maps_of(found)
    if found.cells:
        total = words.size(sum(one.map.whole.size_bytes for one in found.towers))
        return _title("GPU memory", f"{len(found.towers)} GPUs, {total}, one scale")
    if len(maps) == 1:
        whole = maps[0].whole
        shared = any(_is_unified(device, maps[0]) for device in snapshot.devices)
        return _title(whole.label, words.size(whole.size_bytes) + (", shared by CPU and GPU" if shared else ""))
    carved = {one.map.whole.id for one in found.slivers}
    parts = [f"{one.whole.label} {words.size(one.whole.size_bytes)}" for one in maps]
    joined = " + " if carved and len(found.towers) == 1 else " beside "
    return _title("Memory", joined.join(parts) if len(maps) < 4 else f"{len(maps)} pools")


def _is_unified(device: Device, one: MemoryMap) -> bool:
    inside = {row.share.id for row in one.rows}
    return any(place == one.whole.id or place in inside for place in device.allocates_from)


def _title(name: str, detail: str) -> Markup:
    return Markup('{} <span class="of">{}</span>').format(name, detail)


def describe_then(one: PageTower) -> str:
    """Return what of a pool was used THEN_SECONDS ago, or nothing if its past has no figure of about that time."""
    past = one.past.past if one.past else None
    if past is None or not past.times:
        return ""
    then = past.end - THEN_SECONDS
    number = min(range(len(past.times)), key=lambda number: abs(past.times[number] - then))
    sizes = [layer.sizes[number] for layer in past.layers[:-1]]
    if abs(past.times[number] - then) > NEAR_SECONDS or None in sizes or not one.map.whole.size_bytes:
        return ""
    used = sum(size or 0.0 for size in sizes) / one.map.whole.size_bytes
    return f"{words.duration(THEN_SECONDS)} ago {words.ratio(used)}"


def device_lines(one: MemoryMap, snapshot: Snapshot) -> list[Markup]:
    """Return a line for each device that allocates from a pool: its name, and if it computes."""
    inside = {one.whole.id, *(row.share.id for row in one.rows)}
    found = []
    for device in snapshot.devices:
        if not inside.isdisjoint(device.allocates_from):
            parts = list(_describe_device(device))
            found.append(Markup("<b>{}</b> {}").format(device.name, " · ".join(parts)))
    return found


def _describe_device(device: Device) -> Iterator[str]:
    if device.state != "ok":
        yield device.state
    if not isinstance(device.busy_ratio, Absent):
        yield f"{device.busy_ratio:.0%} busy"
    if not isinstance(device.temperature_celsius, Absent):
        yield words.celsius(device.temperature_celsius)
    if not isinstance(device.power_watts, Absent):
        yield words.watts(device.power_watts)
    yield from device.notes


def area_attributes(kind: str) -> Markup:
    return PagePaint.fill(kind)
