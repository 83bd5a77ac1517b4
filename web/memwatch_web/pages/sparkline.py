"""Sparkline geometry. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

# In units of the drawing. The scale spans at least a tenth of the largest value, so that noise looks flat.
WIDTH, HEIGHT, MIN_SPAN = 60, 16, 0.1


def build_path(past: Iterable[tuple[float, int]], start: float, seconds: float) -> str:
    """Return the SVG path of sizes over time, for WIDTH by HEIGHT. Empty for fewer than two points."""
    points = [(at, size) for at, size in past if at >= start]
    if len(points) < 2:
        return ""
    least, most = min(size for _, size in points), max(size for _, size in points)
    span = max(most - least, most * MIN_SPAN, 1)
    top = (most + least + span) / 2  # a flat line is in the middle
    places = [
        (round((at - start) / seconds * WIDTH), round(1 + (top - size) / span * (HEIGHT - 2)))
        for at, size in points
    ]
    return "M" + "L".join(f"{x} {y}" for x, y in _corners(places))


def _corners(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop the inner points of horizontal segments."""
    inner = zip(places, places[1:], places[2:], strict=False)
    kept = [here for before, here, after in inner if not before[1] == here[1] == after[1]]
    return [places[0], *kept, places[-1]]
