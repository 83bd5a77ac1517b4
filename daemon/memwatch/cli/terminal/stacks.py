"""Columns of cells: bytes above each other to scale, to an eighth of a cell where colours and blocks allow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from memwatch.cli.charset import to_ascii
from memwatch.cli.terminal.style import Line, Span

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
