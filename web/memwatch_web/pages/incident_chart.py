"""Picture of an incident, drawn by the server: the largest holders as a stack, and kills as marks.

Colours are those of the kind of holder, as in the maps of memory. Names are where their area is high enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from memwatch.monitor.incidents.records import Incident, Sample

WIDTH, HEIGHT = 1000.0, 240.0
REST = "other memory"
MAX_MARKS = 8
# Height of a line of text.
MIN_PLACE_HEIGHT = 20.0
# A thinner area would disappear behind the lines between areas.
MIN_LINED_HEIGHT = 5.0


class Place(Struct, frozen=True):
    """Rectangle inside an area, for its name: fractions of the width, and the middle in SVG units."""

    start: float
    width: float
    y: float


class Edge(NamedTuple):
    """Upper and lower end of an area at one time, in SVG units: the lower end is the larger number."""

    x: float
    upper: float
    lower: float


class Area(Struct, frozen=True):
    """One holder over time: SVG points of its area, its largest size, and a place for its name if there is one.

    `holder`: `gpu`, `processes` or `unattributed`.
    """

    label: str
    points: str
    holder: str
    largest_bytes: int
    place: Place | None = None
    is_thin: bool = False


class Mark(Struct, frozen=True):
    """A kill: its position, time and victim."""

    x: float
    unix: float
    label: str


class IncidentChart(Struct, frozen=True):
    start: float
    end: float
    top_bytes: int
    areas: tuple[Area, ...]
    marks: tuple[Mark, ...]


def build_incident_chart(one: Incident) -> IncidentChart | None:
    """Draw the samples of an incident. None with fewer than two."""
    samples = one.samples
    if len(samples) < 2 or samples[-1].unix <= samples[0].unix:
        return None
    start, end = samples[0].unix, samples[-1].unix
    top = max([one.size_bytes or 0, *(sample.used_bytes for sample in samples), 1])
    names = sorted({name for sample in samples for name in sample.holders})
    largest = {name: max(sample.holders.get(name, 0) for sample in samples) for name in names}
    ordered = sorted(names, key=lambda name: -largest[name])
    lower = [0.0] * len(samples)
    areas = []
    for name in [*ordered, REST]:
        sizes = [_size(sample, name) for sample in samples]
        # A scan may be older than the figures of the pool: a stack is never higher than its use.
        upper = [
            min(float(sample.used_bytes), low + size)
            for sample, low, size in zip(samples, lower, sizes, strict=True)
        ]
        edges = [
            Edge(_x(sample.unix, start, end), _y(high, top), _y(low, top))
            for sample, high, low in zip(samples, upper, lower, strict=True)
        ]
        areas.append(
            Area(name, _outline(edges), _holder_of(name, one), max(sizes), find_place(edges), is_thin(edges))
        )
        lower = upper
    marks = [
        Mark(round(_x(victim.unix, start, end), 1), victim.unix, victim.who)
        for victim in one.victims[:MAX_MARKS]
        if start <= victim.unix <= end
    ]
    return IncidentChart(start, end, top, tuple(areas), tuple(marks))


def _size(sample: Sample, name: str) -> int:
    if name == REST:
        return max(0, sample.used_bytes - sum(sample.holders.values()))
    return sample.holders.get(name, 0)


def _holder_of(name: str, one: Incident) -> str:
    if name == REST:
        return "unattributed"
    return "gpu" if name in one.gpu_holders else "processes"


def is_thin(edges: Sequence[Edge]) -> bool:
    return max(edge.lower - edge.upper for edge in edges) < MIN_LINED_HEIGHT


def _outline(edges: Sequence[Edge]) -> str:
    """Return the points along the upper edge, and back along the lower one."""
    points = [(edge.x, edge.upper) for edge in edges] + [(edge.x, edge.lower) for edge in reversed(edges)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def find_place(edges: Sequence[Edge]) -> Place | None:
    """Return the widest rectangle inside an area that is as high as a line of text."""
    best: Place | None = None
    for first, begin in enumerate(edges):
        upper, lower = begin.upper, begin.lower
        for edge in edges[first + 1 :]:
            upper, lower = max(upper, edge.upper), min(lower, edge.lower)
            if lower - upper < MIN_PLACE_HEIGHT:
                break
            width = (edge.x - begin.x) / WIDTH
            if best is None or width > best.width:
                best = Place(round(begin.x / WIDTH, 4), round(width, 4), round((upper + lower) / 2, 1))
    return best


def _x(unix: float, start: float, end: float) -> float:
    return (unix - start) / (end - start) * WIDTH


def _y(size: float, top: int) -> float:
    return (1 - size / top) * HEIGHT
