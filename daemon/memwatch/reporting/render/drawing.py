"""Shapes of a picture, and the room that words take: lengths are in pixels, y grows downwards. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

# Widths of characters in parts of the font's size, at least: those of DejaVu Sans, the widest of the usual fonts,
# as measured in Chromium (November 2026). Bold ones are a tenth wider.
WIDTHS = {
    0.36: " ',./:;\\|·IJijl",
    0.50: '()-[]ft!r"*_`',
    0.60: "?FLcksvxyz",
    0.70: "ABCEKPRSTVXYZ$",
    0.80: "&DGHNOQU",
}
WIDTHS |= {0.65: "0123456789abdeghnopqu{}", 0.85: "#+<=>^w~⊂→"}
WIDTH_OF = {one: width for width, several in WIDTHS.items() for one in several}
STRONG_FACTOR = 1.12
# In parts of the font's size: space beside words, and from one line to the next.
INSET, LINE_HEIGHT = 0.5, 1.28


class Rectangle(Struct, frozen=True):
    """A place to draw in."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def ground(self) -> float:
        return self.y + self.height


class Box(Struct, frozen=True):
    """Bytes to scale: `height` is `size_bytes` times the scale. `kind`: its colour. `depth`: 0 in a pool itself.

    `link`: page of these bytes, relative to the pages. Empty if they are part of a box with a link.
    """

    x: float
    y: float
    width: float
    height: float
    size_bytes: int
    kind: str
    depth: int
    title: str
    link: str = ""


class Line(Struct, frozen=True):
    """A line through points, or the border of an area. `kind`: its colour."""

    kind: str
    points: tuple[tuple[float, float], ...]


class Text(Struct, frozen=True):
    """Words from `x` on the line `y`: plain ones, strong ones, and plain ones behind these.

    `anchor`: start, middle or end. `kind`: the bytes that they stand on, a level, or `muted`.
    """

    x: float
    y: float
    plain: str = ""
    strong: str = ""
    behind: str = ""
    anchor: str = "start"
    kind: str = ""


class Drawing(Struct, frozen=True):
    """Areas, boxes, lines and texts, drawn in this order. Boxes: from the ground up, a whole before its parts."""

    areas: tuple[Line, ...] = ()
    boxes: tuple[Box, ...] = ()
    lines: tuple[Line, ...] = ()
    texts: tuple[Text, ...] = ()

    def __add__(self, other: Drawing) -> Drawing:
        return Drawing(
            self.areas + other.areas, self.boxes + other.boxes, self.lines + other.lines, self.texts + other.texts
        )


def width_of(text: str, font: float, strong: bool = False) -> float:
    """Return the width of a text at a size of the font, in its widest usual face."""
    return sum(WIDTH_OF.get(one, 1.0) for one in text) * font * (STRONG_FACTOR if strong else 1.0)


def shorten(text: str, room: float, font: float, strong: bool = False) -> str:
    """Return the text, or as much of its begin as fits with an ellipsis."""
    if width_of(text, font, strong) <= room:
        return text
    while text and width_of(f"{text}…", font, strong) > room:
        text = text[:-1]
    return f"{text.rstrip()}…"


def spread(wanted: Sequence[float], step: float, top: float, bottom: float) -> list[float]:
    """Move places apart to at least a step, as little as needed, between top and bottom if they fit there."""
    found: list[float] = []
    for one in wanted:
        found.append(max(one, found[-1] + step) if found else max(one, top))
    limit = bottom
    for number in range(len(found) - 1, -1, -1):
        found[number] = min(found[number], limit)
        limit = found[number] - step
    return found


def outline(frame: Rectangle, kind: str = "frame") -> Line:
    """Return the border of a place."""
    left, right, top, ground = frame.x, frame.right, frame.y, frame.ground
    return Line(kind, ((left, ground), (left, top), (right, top), (right, ground), (left, ground)))
