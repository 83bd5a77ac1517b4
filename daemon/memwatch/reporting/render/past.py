"""The past of a pool: layers over time at the scale of its tower, levels, what happened, and names in the layers.

The composition of a pool has its layers from the ground up, and the history series that have them. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import COUNTED_AS_DEVICES, Absent, Pool, Share
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.drawing import (
    LINE,
    Drawing,
    Line,
    Rectangle,
    Text,
    TimeAxis,
    find_line,
    outline,
    width_of,
)
from memwatch.reporting.render.memory_map import GPU_MEMORY

# Number of places from which room for a name is sought.
MAX_STARTS = 30


class Layer(Struct, frozen=True):
    """One layer of a pool's past: its colour, and a size in bytes at each time, None if that is not known.

    `label`: its name in a picture, empty for one that has none.
    """

    kind: str
    sizes: tuple[float | None, ...]
    label: str = ""


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

    @property
    def axis(self) -> TimeAxis:
        return TimeAxis(self.start, self.end)


def break_at_gaps(
    times: Sequence[float], columns: Sequence[Sequence[float | None]], longest: float
) -> tuple[tuple[float, ...], list[Sequence[float | None]]]:
    """Put a time without figures into each pause longer than `longest` seconds, so that nothing is drawn there.

    `columns`: the sizes of all layers at each time, at least one.
    """
    found: list[float] = []
    filled: list[Sequence[float | None]] = []
    for unix, column in zip(times, columns, strict=True):
        if found and unix - found[-1] > longest:
            found.append((found[-1] + unix) / 2)
            filled.append((None,) * len(column))
        found.append(unix)
        filled.append(column)
    return tuple(found), filled


Number = TypeVar("Number", int, float)


def split_at_gaps(
    points: Iterable[tuple[float, Number, Number]], longest: float
) -> list[list[tuple[Number, Number]]]:
    """Return a line in pieces that have no pause longer than `longest` seconds. `points`: time, x and y."""
    pieces: list[list[tuple[Number, Number]]] = []
    before = -inf
    for unix, x, y in points:
        if abs(unix - before) > longest:
            pieces.append([])
        pieces[-1].append((x, y))
        before = unix
    return pieces


def list_layers(
    kinds: Sequence[str], columns: Sequence[Sequence[float | None]], labels: Sequence[str] = ()
) -> tuple[Layer, ...]:
    """Return the layers of these kinds, from the ground up. `columns`: their sizes at each time."""
    return tuple(
        Layer(kind, tuple(column[number] for column in columns), label)
        for number, (kind, label) in enumerate(zip(kinds, labels or [""] * len(kinds), strict=True))
    )


def draw_past(past: Past, size_bytes: int, frame: Rectangle, strip: float) -> Drawing:
    """Draw the layers over time at the scale of the frame, and above it a strip of the levels, `strip` high."""
    drawing = draw_layers(past, size_bytes, frame)
    above = Drawing(tuple(draw_levels(past, replace(frame, y=frame.y - strip, height=strip))))
    return drawing + above + Drawing(lines=(outline(frame),))


def draw_layers(past: Past, size_bytes: float, frame: Rectangle) -> Drawing:
    """Draw the layers over time at the scale of the frame, and the line of used memory.

    A layer that is empty for a time is not drawn then: its edges would show as a line.
    """

    def place_bytes(size: float) -> float:
        return frame.ground - frame.height * min(1.0, size / size_bytes)

    areas: list[Line] = []
    below: list[float | None] = [0.0] * len(past.times)
    lines: list[Line] = []
    axis = past.axis
    places = [axis.x(unix, frame) for unix in past.times]
    for number, layer in enumerate(past.layers):
        above = [
            None if size is None or low is None else low + size
            for size, low in zip(layer.sizes, below, strict=True)
        ]
        runs, is_last = find_runs(above), number == len(past.layers) - 1
        for first, last in runs if is_last else _leave_out_empty(layer.sizes, runs):
            upper = [(places[i], place_bytes(above[i] or 0.0)) for i in range(first, last)]
            lower = [(places[i], place_bytes(below[i] or 0.0)) for i in range(first, last)]
            areas.append(Line(layer.kind, (*upper, *reversed(lower))))
        if number == len(past.layers) - 2:
            lines += [
                Line("used", tuple((places[i], place_bytes(above[i] or 0.0)) for i in range(first, last)))
                for first, last in runs
            ]
        below = above
    return Drawing(tuple(areas), (), tuple(lines))


def _leave_out_empty(sizes: Sequence[float | None], runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of runs in which a layer has bytes, from the last time before to the first one after."""
    for first, last in runs:
        has_bytes = [
            bool(sizes[i] or sizes[max(first, i - 1)] or sizes[min(last - 1, i + 1)]) for i in range(first, last)
        ]
        for begin, end in find_runs([1.0 if one else None for one in has_bytes]):
            yield first + begin, first + end


def draw_levels(past: Past, frame: Rectangle) -> Iterator[Line]:
    """Yield an area as high as the frame for each time at a level, OK first. Without figures there is no level."""
    known = [None if None in sizes else 0.0 for sizes in zip(*(one.sizes for one in past.layers), strict=True)]
    runs = [("low", past.times[first], past.times[last - 1]) for first, last in find_runs(known)]
    for word, began, ended in (*runs, *((word, began, ended) for began, ended, word in past.levels if runs)):
        yield draw_span(f"level-{word}", past.axis.x(began, frame), past.axis.x(ended, frame), frame)


def draw_span(kind: str, left: float, right: float, frame: Rectangle) -> Line:
    """Return an area as high as the frame."""
    return Line(kind, ((left, frame.y), (right, frame.y), (right, frame.ground), (left, frame.ground)))


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


def name_layers(
    past: Past,
    whole: float,
    frame: Rectangle,
    font: float,
    names: Sequence[str],
    walls: Collection[float] = (),
    marks: Collection[float] = (),
) -> Iterator[Text]:
    """Yield the names of layers that have room for them in one line, each as near to the end as possible.

    `names`: one for each layer, or nothing. No name is on a vertical line, `walls`, or a horizontal one, `marks`.
    None is cut: the composition beside the past names the layers without room.
    """
    below, axis = [0.0] * len(past.times), past.axis
    places = [axis.x(unix, frame) for unix in past.times]
    for layer, name in zip(past.layers, names, strict=True):
        known = [None if size is None else low + size for size, low in zip(layer.sizes, below, strict=True)]
        if name:
            edges = [
                (
                    x,
                    None if high is None else frame.ground - frame.height * min(1.0, high / whole),
                    frame.ground - frame.height * min(1.0, low / whole),
                )
                for x, high, low in zip(places, known, below, strict=True)
            ]
            yield from _name_layer(layer.kind, name, edges, font, walls, marks)
        below = [low if high is None else high for high, low in zip(known, below, strict=True)]


Edges = Sequence[tuple[float, float | None, float]]


def _name_layer(
    kind: str, name: str, edges: Edges, font: float, walls: Collection[float], marks: Collection[float]
) -> Iterator[Text]:
    place = find_place(edges, walls, marks, font, width_of(name, font, strong=True) + 1.2 * font)
    y = None if place is None else find_line(place.y, place.ground, marks, font)
    if place is not None and y is not None:
        yield Text(place.right - 0.6 * font, y + 0.36 * font, strong=name, anchor="end", kind=kind)


def find_place(
    edges: Edges, walls: Collection[float], marks: Collection[float], font: float, width: float
) -> Rectangle | None:
    """Return the last rectangle inside an area that is so wide and has a line of words, None without one.

    `edges`: x, upper and lower end of the area; the upper one is None in a gap. No wall crosses the rectangle.
    """
    for last in range(len(edges) - 1, 0, -max(1, len(edges) // MAX_STARTS)):
        right, begin, lower = edges[last]
        if begin is None:
            continue
        left, upper = right, begin
        for x, high, low in reversed(edges[:last]):
            if high is None or any(x < wall < right for wall in walls):
                break
            top, ground = max(upper, high), min(lower, low)
            if ground - top < LINE * font:
                break
            left, upper, lower = x, top, ground
            if right - left >= width:
                break
        if right - left >= width and find_line(upper, lower, marks, font) is not None:
            return Rectangle(left, upper, right - left, lower - upper)
    return None


# Kinds of boxes of the layers that the history keeps, as in the map of now.
LAYER_KINDS = {
    "gpu": "devices",
    "processes": "anonymous",
    "unattributed": "unattributed",
    "reclaimable": "page_cache",
}


GPU_AND_DEVICES = "GPU and devices"
PAGE_BYTES = 4096


class Sources(Struct, frozen=True):
    """Names of the history series from which the composition of one pool follows."""

    used: str
    available: str
    free: str
    unattributed: str
    devices: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.used, self.available, self.free, self.unattributed, *self.devices


class Holder(Struct, frozen=True):
    """One layer of the stack, from the bottom: its kind of holder, as in the memory map, and its label."""

    holder: str
    label: str


def find_sources(pool: Pool, shares: Sequence[Share]) -> Sources:
    """Return the series of a pool. Shares of devices count where they are contents of it."""
    held = tuple(
        f"share.{share.id}.used_bytes"
        for share in shares
        if share.within == pool.id and share.kind in COUNTED_AS_DEVICES and pool.kind not in GPU_MEMORY
    )
    prefix = f"pool.{pool.id}."
    used, available, free, unattributed = (
        f"{prefix}{name}_bytes" for name in ("used", "available", "free", "unattributed")
    )
    return Sources(used, available, free, unattributed, held)


def build_layers(
    pool: Pool, sources: Sources, labels: Mapping[str, str] = MappingProxyType({})
) -> tuple[Holder, ...]:
    """Return the layers that `split` fills. Reclaimable memory is the last one, above used memory.

    `labels`: those of shares by id. A single share has its own name, as in the landscape: "CUDA Pool".
    """
    if pool.kind in GPU_MEMORY:
        return (
            Holder("gpu", "held on the GPU"),
            Holder("unattributed", "unattributed"),
            Holder("reclaimable", "page cache"),
        )
    ids = [name.removeprefix("share.").removesuffix(".used_bytes") for name in sources.devices]
    rest = Holder("processes", "processes and kernel" if pool.contents else "other used" if ids else "used")
    layers = rest, Holder("unattributed", "unattributed"), Holder("reclaimable", "page cache")
    label = labels.get(ids[0], GPU_AND_DEVICES) if len(ids) == 1 else GPU_AND_DEVICES
    return (Holder("gpu", label), *layers) if ids else layers


def list_past_layers(
    pool: Pool,
    shares: Sequence[Share],
    columns: Sequence[Sequence[float | None]],
    labels: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Layer, ...]:
    """Return the layers of a pool's past. `columns`: what `split` returns, at each time. `labels`: of shares."""
    layers = build_layers(pool, find_sources(pool, shares), labels)
    return list_layers([LAYER_KINDS[one.holder] for one in layers], columns, [one.label for one in layers])


def split(
    pool: Pool,
    used: float | None,
    available: float | None,
    free: float | None,
    unattributed: float | None,
    devices: Sequence[float | None],
) -> tuple[float | None, ...]:
    """Return the sizes of the layers at one moment, None without data. Layers below the last add up to `used`.

    The figures may be means: a part below a page is the rest of their rounding.
    """
    count = 3 if pool.kind in GPU_MEMORY or not devices else 4
    if used is None:
        return (None,) * count
    rest = _whole(min(unattributed or 0.0, used))
    held = _whole(min(sum(one or 0.0 for one in devices), used - rest))
    cache = _whole(available - free) if available is not None and free is not None else 0.0
    if count == 3:
        return used - rest, rest, cache
    return held, used - rest - held, rest, cache


def _whole(size: float) -> float:
    return size if size >= PAGE_BYTES else 0.0


def split_now(pool: Pool, snapshot: Snapshot) -> tuple[float | None, ...]:
    """Return the sizes of the layers in a snapshot."""
    names = find_sources(pool, snapshot.shares).devices
    held = {f"share.{share.id}.used_bytes": _known(share.used_bytes) for share in snapshot.shares}
    figures = (pool.used_bytes, pool.available_bytes, pool.free_bytes, pool.unattributed_bytes)
    used, available, free, unattributed = map(_known, figures)
    return split(pool, used, available, free, unattributed, [held[name] for name in names])


def _known(figure: int | Absent) -> float | None:
    return None if isinstance(figure, Absent) else float(figure)
