"""Shapes and axes of a picture, and the room that words take: lengths are in pixels, y grows downwards.

Bytes go up, time goes to the left. A picture that a page stretches is laid out at its narrowest: what has room
there has room in a wider one. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from memwatch.core.model import Absent
from memwatch.reporting.render.memory_map import MemoryMap

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


class Sign(Struct, frozen=True):
    """The shape of a level, in a square of `size` pixels at `x` and `y`."""

    x: float
    y: float
    size: float
    level: str


class Drawing(Struct, frozen=True):
    """Shapes, drawn in the order of the fields. Boxes: from the ground up, a whole before its parts."""

    areas: tuple[Line, ...] = ()
    boxes: tuple[Box, ...] = ()
    lines: tuple[Line, ...] = ()
    texts: tuple[Text, ...] = ()
    signs: tuple[Sign, ...] = ()

    def __add__(self, other: Drawing) -> Drawing:
        return Drawing(
            self.areas + other.areas,
            self.boxes + other.boxes,
            self.lines + other.lines,
            self.texts + other.texts,
            self.signs + other.signs,
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


# Steps between times, in seconds.
DAY_SECONDS = 86_400
TIME_STEPS = (2, 5, 10, 15, 30, *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 240, 720)))
TIME_STEPS += tuple(days * DAY_SECONDS for days in (1, 2, 5, 10))
# Forms of a time by the unit of its step. The widest digits stand for all.
TIME_FORMS = {"seconds": "00:00:00", "minutes": "00:00", "day": "00-00"}
# Space between times, and from one figure of bytes to the next, in parts of the font's size.
TIME_GAP, BYTES_STEP = 2.4, 4.4
# Height of a line of words between two borders, in parts of the font's size.
LINE = 1.4
# From a line to the words behind or before it, and between words, in pixels.
BESIDE_LINE, BETWEEN_WORDS = 3.0, 6.0


class TimeAxis(Struct, frozen=True):
    """A range of time across a picture, in Unix seconds."""

    start: float
    end: float

    def at(self, unix: float) -> float:
        """Return the place of a time, 0 to 1 from left to right. A time outside the range is at its edge."""
        return min(1.0, max(0.0, (unix - self.start) / (self.end - self.start)))

    def x(self, unix: float, frame: Rectangle) -> float:
        """Return the x of a time, within the frame."""
        return frame.x + frame.width * self.at(unix)


class TimeMark(Struct, frozen=True):
    """A round time at a part of the width, 0 to 1. `unit`: that of the step, a key of TIME_FORMS."""

    at: float
    unix: float
    unit: str


def measure_times(font: float) -> dict[str, float]:
    """Return the width of a time by its unit, at a size of the font."""
    return {unit: width_of(form, font) for unit, form in TIME_FORMS.items()}


def list_times(
    axis: TimeAxis,
    width: float,
    labels: Mapping[str, float],
    gap: float,
    taken: Collection[tuple[float, float]] = (),
) -> Iterator[TimeMark]:
    """Yield the round times that have room. `labels`: widths of times by unit; `gap`: the space between them.

    `taken`: left and right ends of other words on their line. All widths are in pixels, or all in cells.
    """
    span = axis.end - axis.start
    for step in TIME_STEPS:
        unit = "day" if step >= DAY_SECONDS else "minutes" if step >= 60 else "seconds"
        if width * step / span >= labels[unit] + gap:
            break
    half = labels[unit] / 2
    for number in range(math.ceil(axis.start / step), int(axis.end // step) + 1):
        at = axis.at(number * step)
        left, right = at * width - half, at * width + half
        meets = any(left - gap / 2 < end and start < right + gap / 2 for start, end in taken)
        if left >= 0 and right <= width and not meets:
            yield TimeMark(at, float(number * step), unit)


def list_steps(top: float, unit: str, count: float = 5) -> list[float]:
    """Return round figures from zero to the top, in at most `count` steps: 0, 32, 64 GiB and not 0, 27.9, 55.9.

    `unit`: that of a history series. The steps of bytes are binary.
    """
    if unit == "ratio" and top == 1.0:
        return [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    step = 2.0 ** math.ceil(math.log2(top / count)) if unit == "bytes" else _round_up(top / count)
    found = [number * step for number in range(int(top / step + 1e-9) + 1)]
    return [*found, top] if top - found[-1] > 0.45 * step else found


def _round_up(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * least)


def list_bytes(size: int, frame: Rectangle, font: float) -> Iterator[Text]:
    """Yield round figures of bytes left of the frame, from the ground up, and the size at its top."""
    unit = 1 << 30 if size >= 1 << 32 else 1 << 20
    steps = list_steps(float(size), "bytes", max(1.0, frame.height / (BYTES_STEP * font)))
    for place in (*(step for step in steps if (size - step) * frame.height / size >= 1.4 * font), size):
        figure = f"{place / unit:,.1f}" if place % unit and size < 1000 * unit else f"{place / unit:,.0f}"
        y = frame.ground - frame.height * place / size + 0.36 * font
        yield Text(frame.x - 0.45 * font, y, plain=figure, anchor="end", kind="muted")


class Threshold(Struct, frozen=True):
    """The begin of a level at a height. Its words stand at `word_y`, off the line of used memory."""

    level: str
    y: float
    word: str
    word_y: float


def list_thresholds(one: MemoryMap, frame: Rectangle, font: float) -> Iterator[Threshold]:
    """Yield the begins of the levels of a pool, the lowest first.

    Their words stand a line apart, off the line of used memory, from a line above the frame on. Without room for
    all of them the lowest levels are left out.
    """
    step, off = 0.9 * LINE_HEIGHT * font, 0.77 * font
    used = -math.inf if isinstance(one.edge, Absent) else frame.ground - one.edge * frame.height
    heights = [(mark, frame.ground - mark.position * frame.height) for mark in one.marks]
    below = [(mark, y) for mark, y in heights if y >= used]
    above = [(mark, y) for mark, y in heights if y < used]
    highest = frame.y - step
    for found, top, bottom in (
        (below, max(highest, used + off), max(frame.ground, used + off)),
        (above, highest, used - off),
    ):
        kept = found[-(1 + max(0, int((bottom - top) / step))) :] if found else []
        places = spread([y for _, y in reversed(kept)], step, top, bottom)
        for (mark, y), place in zip(kept, reversed(places), strict=True):
            yield Threshold(mark.level, y, f"{mark.threshold * 100:g}%", place)


class Flag(Struct, frozen=True):
    """Words above a past, from `left` to `right` in a row counted upwards, with a line down from there at `x`.

    `anchor`: "start" if they begin at the line, else "end": they end there, or in a single row at the right edge.
    """

    x: float
    left: float
    right: float
    row: int = 0
    anchor: str = "start"

    def disturbs(self, other: Flag) -> bool:
        """Return True if words meet, or the line of one crosses the words of the other."""
        apart = BETWEEN_WORDS
        meets = self.row == other.row and self.left < other.right + apart and other.left < self.right + apart
        return meets or self._crosses(other) or other._crosses(self)

    def _crosses(self, other: Flag) -> bool:
        return self.row > other.row and other.left - 2 < self.x < other.right + 2


def place_flag(
    x: float, width: float, frame: Rectangle, placed: Collection[Flag], rows: int = 1, lead: float = BESIDE_LINE
) -> Flag | None:
    """Return the place of words above a line at `x`, in the lowest row with room, None without one.

    They begin `lead` behind the line. Without room there they end as much before it, in a single row at the edge.
    """
    left, anchor = x + lead, "start"
    if left + width > frame.right:
        left, anchor = frame.right - width if rows == 1 else x - lead - width, "end"
    flags = (Flag(x, left, left + width, row, anchor) for row in range(rows))
    is_inside = left >= frame.x + min(0.0, lead)
    return next((one for one in flags if is_inside and not any(map(one.disturbs, placed))), None)


def stack_sizes(sizes: Sequence[float], whole: float, frame: Rectangle) -> Iterator[Rectangle]:
    """Yield the place of each size at the scale of the frame, the first on the ground, cut off at its top."""
    ground, below = frame.ground, 0.0
    for size in sizes:
        below += size
        top = frame.ground - frame.height * min(1.0, below / whole)
        yield Rectangle(frame.x, top, frame.width, ground - top)
        ground = top


def draw_forecast(axis: TimeAxis, now: float, full_at: float, used_ratio: float, frame: Rectangle) -> Line:
    """Draw used memory at the current rate: to the top, or to the end of the axis."""
    end = min(full_at, axis.end)
    ratio = used_ratio + (1.0 - used_ratio) * (end - now) / max(full_at - now, 1e-9)
    start, stop = (
        (axis.x(unix, frame), frame.ground - frame.height * part)
        for unix, part in ((now, used_ratio), (end, ratio))
    )
    return Line("forecast", (start, stop))


def find_line(upper: float, lower: float, marks: Collection[float], font: float) -> float | None:
    """Return the middle of a line of words between two heights that no mark crosses, nearest to their middle."""
    middle, room = (upper + lower) / 2, (lower - upper - LINE * font) / 2
    if room < 0:
        return None
    steps = chain.from_iterable((middle - step, middle + step) for step in range(int(room) + 1))
    return next((y for y in steps if all(abs(y - mark) >= 0.8 * font for mark in marks)), None)
