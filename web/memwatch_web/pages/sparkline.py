"""A small line without axes: how a figure went. Pure geometry."""

from __future__ import annotations

from collections.abc import Iterable

# In units of the drawing. What changes by less than a tenth of the largest figure looks as flat as it is.
WIDTH, HEIGHT, LEAST_SPAN = 60, 16, 0.1


def path_of(past: Iterable[tuple[float, int]], start: float, seconds: float) -> str:
    """The path of a line through sizes by time, for an SVG of WIDTH by HEIGHT; "" for fewer than two."""
    points = [(at, size) for at, size in past if at >= start]
    if len(points) < 2:
        return ""
    least, most = min(size for _, size in points), max(size for _, size in points)
    span = max(most - least, most * LEAST_SPAN, 1)
    top = (most + least + span) / 2  # what hardly moves lies in the middle
    places = [
        (round((at - start) / seconds * WIDTH), round(1 + (top - size) / span * (HEIGHT - 2)))
        for at, size in points
    ]
    return "M" + "L".join(f"{x} {y}" for x, y in _corners(places))


def _corners(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without the points of a level stretch that lie between its ends."""
    inner = zip(places, places[1:], places[2:], strict=False)
    kept = [here for before, here, after in inner if not before[1] == here[1] == after[1]]
    return [places[0], *kept, places[-1]]
