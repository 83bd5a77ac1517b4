"""Picture of an incident, drawn by the server: the largest holders as a stack, and kills as marks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from memwatch.incidents.records import Incident, Sample

WIDTH, HEIGHT = 1000.0, 240.0
REST = "other memory"
MAX_MARKS = 8


class Area(Struct, frozen=True):
    """One holder over time: SVG points of its area, and its largest size."""

    label: str
    points: str
    colour: int
    largest_bytes: int


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
    for number, name in enumerate([*ordered, REST]):
        sizes = [_size(sample, name) for sample in samples]
        # A scan may be older than the figures of the pool: a stack is never higher than its use.
        upper = [
            min(float(sample.used_bytes), low + size)
            for sample, low, size in zip(samples, lower, sizes, strict=True)
        ]
        points = _outline(samples, lower, upper, start, end, top)
        areas.append(Area(name, points, 0 if name == REST else number + 1, max(sizes)))
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


def _outline(
    samples: Sequence[Sample],
    lower: Sequence[float],
    upper: Sequence[float],
    start: float,
    end: float,
    top: int,
) -> str:
    """Return the points along the upper edge, and back along the lower one."""
    edges = [(_x(one.unix, start, end), _y(size, top)) for one, size in zip(samples, upper, strict=True)]
    back = [(_x(one.unix, start, end), _y(size, top)) for one, size in zip(samples, lower, strict=True)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in [*edges, *reversed(back)])


def _x(unix: float, start: float, end: float) -> float:
    return (unix - start) / (end - start) * WIDTH


def _y(size: float, top: int) -> float:
    return (1 - size / top) * HEIGHT
