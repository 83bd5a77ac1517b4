"""Columns of cells: bytes above each other to scale, to an eighth of a cell where colours and blocks allow it.

In one row of cells, a pool is a bar of its parts, with the thresholds of the levels through it. The layout is that
of all displays: `render.memory_map`. A cell of a bar is a character with two colours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from memwatch.cli.charset import to_ascii
from memwatch.cli.terminal.figures import short
from memwatch.cli.terminal.style import Line, Span, cells, clip
from memwatch.core.model import Absent, Pool, Process, Share, whole_of
from memwatch.core.snapshot import LEVEL_WORDS, Pressure
from memwatch.reporting.render.memory_map import Mark, Segment, Slice, name_holders

LOWER_BLOCKS = " ▁▂▃▄▅▆▇█"
# Of a span.
TEXT, STYLE_AND_GROUND = itemgetter(0), itemgetter(1, 2)


class Look(NamedTuple):
    """Appearance of a kind of bytes: its colour, its character, its character where colours are missing.

    `ink`: the colour of words on it. `word`: its name in a key.
    """

    colour: str
    char: str
    plain: str
    word: str = ""
    ink: str = "ink"


LOOKS: Mapping[str, Look] = {
    "devices": Look("gpu", "█", "█", "GPU"),
    "devices-family": Look("gpu-family", "█", "█", ink="paper"),
    "slice": Look("gpu-family", "█", "▚", ink="paper"),
    "engine-weights": Look("weights", "█", "▓"),
    "engine-draft": Look("weights-2", "█", "▞"),
    "engine-kv_cache": Look("kv", "█", "▚"),
    "engine-kv_used": Look("kv", "█", "▚"),
    "engine-kv_reserved": Look("gpu", "▒", "░"),
    "anonymous": Look("process", "█", "▓", "processes"),
    "anonymous-family": Look("process-family", "█", "▓", ink="paper"),
    "used": Look("process", "█", "▓", "other use"),
    "shared_memory": Look("shared", "█", "▚", "shared"),
    "huge_pages": Look("huge", "█", "▤", "huge pages"),
    "kernel": Look("kernel", "█", "▞", "kernel"),
    "reserved": Look("kernel", "█", "▞", "reserved"),
    "unattributed": Look("rest", "█", "▒", "unattributed"),
    "page_cache": Look("cache", "░", "░", "cache"),
    "available": Look("free", "·", "·", "available"),
    "free": Look("free", "·", "·", "free"),
    **{f"level-{level}": Look(level, "█", "█") for level in ("medium", "high", "critical")},
    "level-low": Look("ok", "█", "·"),
}
UNKNOWN = Look("muted", "▒", "▒")
# Neighbours of one kind have two shades, so that their border is seen.
SHADES = {"process": "process-2", "gpu": "gpu-2"}


def look_of(kind: str, holder: str = "") -> Look:
    """Return the look of a kind of bytes. `used` memory of a GPU is held by the GPU."""
    return (
        LOOKS["devices"]._replace(word="used") if kind == "used" and holder == "gpu" else LOOKS.get(kind, UNKNOWN)
    )


class Ink(NamedTuple):
    """Abilities of the terminal."""

    has_colour: bool
    is_ascii: bool

    @property
    def has_parts(self) -> bool:
        """Return if a cell can show two kinds of bytes."""
        return self.has_colour and not self.is_ascii

    def char_of(self, look: Look) -> str:
        if self.is_ascii:
            return to_ascii(look.plain)
        return look.char if self.has_colour else look.plain


class Bytes(NamedTuple):
    """Bytes in a column of cells, up to a height in eighths of a cell."""

    look: Look
    end: int


def eighths_of(height: float) -> int:
    """Return a height in cells as eighths."""
    return int(height * 8 + 0.5)


@lru_cache(maxsize=4096)
def draw_column(stack: tuple[Bytes, ...], rows: int, ink: Ink) -> tuple[Span, ...]:
    """Return the cells of a stack from top to bottom. The stack is in the order of its bytes, from the ground.

    Most columns of a picture are those of the picture before it.
    """
    return tuple(_draw_cell(stack, row * 8, ink) for row in range(rows - 1, -1, -1))


def _draw_cell(stack: Sequence[Bytes], bottom: int, ink: Ink) -> Span:
    """Return one cell: with the two largest of its parts if the lower one is drawn in blocks, else the largest."""
    parts = list(_cut(stack, bottom))
    if not parts:
        return Span(" ")
    look, length = max(parts, key=lambda part: part[1])
    if ink.has_parts and length < 8:
        while len(parts) > 2:
            at = min(range(len(parts)), key=lambda number: parts[number][1])
            beside = at - 1 if at else 1
            parts[beside] = parts[beside][0], parts[beside][1] + parts[at][1]
            del parts[at]
        lower, height = parts[0]
        if lower.char == "█":
            upper = parts[1][0] if len(parts) > 1 and parts[1][0].char == "█" else None
            return Span(LOWER_BLOCKS[height], lower.colour, upper.colour if upper else "")
    return Span(ink.char_of(look), look.colour) if length >= 4 or len(parts) > 1 else Span(" ")


def _cut(stack: Sequence[Bytes], bottom: int) -> Iterator[tuple[Look, int]]:
    """Yield the bytes in a row and the eighths of it that they fill."""
    start, top = bottom, bottom + 8
    for look, end in stack:
        if end > start:
            yield look, min(end, top) - start
            start = end
            if end >= top:
                return


def shade(stack: Sequence[tuple[Look, float]]) -> tuple[Bytes, ...]:
    """Return a stack of heights in cells. Neighbours of one colour get two shades."""
    found: list[Bytes] = []
    for look, end in stack:
        colour = look.colour
        if found and found[-1].look.colour == colour:
            colour = SHADES.get(colour, colour)
        found.append(Bytes(look._replace(colour=colour), eighths_of(end)))
    return tuple(found)


def merge(row: Sequence[Span]) -> Line:
    """Join neighbours of one style."""
    return tuple(Span("".join(map(TEXT, run)), style, on) for (style, on), run in groupby(row, STYLE_AND_GROUND))


Place = Pool | Share


# Last cell of a holder: a gap of an eighth.
EDGE = "▉"
# A name that does not fit is cut, but not to less than this.
MIN_CLIPPED = 6


class Name(NamedTuple):
    """A holder inside a bar, from `start` up to `end`. The first of `texts` that fits is written.

    `is_last`: the part of the bar ends with it, so that it needs no edge.
    """

    start: int
    end: int
    texts: tuple[str, ...]
    is_last: bool = False


def cell_of(position: float, width: int) -> int:
    """Return the cell at a position. It is rounded, so that errors do not add up."""
    return round(min(1.0, position) * width)


def _ends(one: Segment | Slice, width: int) -> tuple[int, int]:
    return cell_of(one.start, width), cell_of(one.start + one.width, width)


def draw_bar(
    found: Sequence[Segment],
    width: int,
    marks: Sequence[Mark] = (),
    has_colour: bool = True,
    has_names: bool = False,
) -> Line:
    """Draw the bar, with the thresholds of the levels through it and the names of holders inside."""
    row = [Span(" ")] * width
    for segment in found:
        look, (start, end) = look_of(segment.kind, segment.holder), _ends(segment, width)
        row[start:end] = [Span(look.char if has_colour else look.plain, look.colour)] * (end - start)
    crossed = {mark_cell(one, width): one.level for one in marks} if width >= 20 else {}
    if has_names:
        put_names(row, list(_names(found, width)), crossed)
    for at, level in crossed.items():
        under = row[at]
        solid = under.text in ("█", EDGE)
        row[at] = Span("│", "ink" if solid else level, under.style if solid else "")
    return merge(row)


def _names(found: Sequence[Segment], width: int) -> Iterator[Name]:
    """Yield the processes of the segments whose names have one cell for each character."""
    ends = {one.kind: _ends(one, width)[1] for one in found}
    for one in found:
        name = one.process.title if one.process and one.process.visible else ""
        if name and cells(name) == len(name):
            start, end = _ends(one, width)
            yield Name(start, end, (f"{name} {short(one.size_bytes)}", name), end == ends[one.kind])


def put_share_names(row: list[Span], share: Share, end: int, processes: Sequence[Process]) -> None:
    """Write the names of the largest holders of a share into the cells up to `end`, which are its use."""
    used = share.used_bytes
    if isinstance(used, Absent) or not used or not end:
        return
    whole = Segment("used", "gpu", "", used, 0.0, 1.0)
    put_names(row, list(_names(list(name_holders(whole, used, processes, [share.id])), end)))


def mark_cell(mark: Mark, width: int) -> int:
    return min(width - 1, round(mark.position * width))


def put_names(row: list[Span], names: Sequence[Name], crossed: Collection[int] = ()) -> None:
    """Write each name into the longest run of its cells without a threshold, and an edge after its last cell."""
    for one in names:
        end = one.end if one.is_last else one.end - 1
        if end > one.start and not one.is_last:
            row[end] = row[end]._replace(text=EDGE)
        start, stop = _longest_run(one.start, end, crossed)
        room = stop - start - 2
        short = [clip(one.texts[-1], room)] if room >= MIN_CLIPPED else []
        text = next((text for text in (*one.texts, *short) if len(text) <= room), "")
        for at, char in enumerate(f" {text} " if text else "", start):
            row[at] = Span(char, "ink", row[at].style)


def _longest_run(start: int, end: int, crossed: Collection[int]) -> tuple[int, int]:
    edges = [start - 1, *sorted(at for at in crossed if start <= at < end), end]
    return max(((left + 1, right) for left, right in pairwise(edges)), key=lambda run: run[1] - run[0])


def draw_slices(slices: Sequence[Slice], width: int, level_of: Mapping[str, str]) -> Line:
    """Draw the bar of a GPU in MIG mode: its instances side by side, each filled as far as it is used."""
    row = [Span(" ")] * width
    for one in slices:
        start, end = _ends(one, width)
        room = max(0, end - start - 1)  # one cell is the edge
        filled = 0 if isinstance(one.used, Absent) else round(one.used * room)
        level = level_of.get(one.share.id, "")
        colour = level if level in ("high", "critical") else "gpu"
        row[start : start + filled] = [Span("█", colour)] * filled
        row[start + filled : start + room] = [Span("·", "free")] * (room - filled)
        if end > start:
            row[end - 1] = Span("▏" if end < width else " ", "muted")
    return merge(row)


def marks_of(place: Place, pressure: Sequence[Pressure]) -> tuple[Mark, ...]:
    """Return the thresholds of a pool or limited share by rising level. Empty if it is not judged.

    The judged memory may be less than the bar: without huge pages, without resident memory, or a budget.
    """
    verdict = next((one for one in pressure if one.target == place.id), None)
    size = whole_of(place)
    if verdict is None or isinstance(verdict.thresholds, Absent) or not size:
        return ()
    judged = size if isinstance(verdict.size_bytes, Absent) else verdict.size_bytes or size
    available = place.available_bytes if isinstance(place, Pool) else place.left_bytes
    counted = verdict.available_bytes
    beyond = 0 if isinstance(available, Absent) or isinstance(counted, Absent) else available - counted
    found = []
    for number, level in enumerate(LEVEL_WORDS[1:], 1):
        threshold = verdict.thresholds.entry(number)
        left = (1 - threshold) * (judged - verdict.resident_bytes) + beyond
        found.append(Mark(level, threshold, 1 - left / size))
    return tuple(one for one in found if 0 < one.position <= 1)
