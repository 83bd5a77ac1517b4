"""Styled text for terminals: spans with named styles, and their escape sequences at each colour depth."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from textwrap import wrap
from typing import NamedTuple

RESET = "\x1b[0m"


class Depth(IntEnum):
    """Number of colours that a terminal shows."""

    NONE = 0
    BASIC = 16
    INDEXED = 256
    TRUE = 1 << 24


class Colour(NamedTuple):
    """One colour at each depth: SGR code of the 16, number of the 256, and RGB."""

    basic: int
    indexed: int
    rgb: tuple[int, int, int]


# Holders of memory are green, blue and grey. Yellow to red is for levels only.
COLOURS: Mapping[str, Colour] = {
    "gpu": Colour(92, 70, (104, 171, 16)),
    "gpu-2": Colour(92, 64, (86, 142, 14)),
    "gpu-family": Colour(32, 22, (38, 74, 10)),
    "weights": Colour(96, 151, (178, 219, 120)),
    "weights-2": Colour(96, 150, (160, 200, 104)),
    "kv": Colour(92, 113, (140, 196, 60)),
    "process": Colour(94, 69, (91, 141, 239)),
    "process-2": Colour(94, 63, (72, 116, 206)),
    "process-family": Colour(34, 24, (34, 62, 122)),
    "shared": Colour(36, 37, (38, 166, 154)),
    "kernel": Colour(37, 146, (160, 166, 190)),
    "huge": Colour(35, 133, (171, 99, 188)),
    "rest": Colour(90, 243, (118, 124, 134)),
    "cache": Colour(34, 67, (84, 128, 164)),
    "free": Colour(90, 240, (90, 96, 105)),
    "ok": Colour(32, 71, (74, 170, 90)),
    "medium": Colour(33, 178, (214, 168, 20)),
    "high": Colour(93, 208, (247, 132, 44)),
    "critical": Colour(91, 203, (244, 92, 92)),
    "muted": Colour(90, 245, (134, 140, 150)),
    "accent": Colour(36, 80, (77, 196, 212)),
    "ink": Colour(30, 16, (10, 12, 16)),
    "paper": Colour(97, 231, (255, 255, 255)),
}
ATTRIBUTES = {"bold": "1", "dim": "2", "underline": "4", "reverse": "7"}
TERMS_WITH_256 = ("256color", "kitty", "alacritty", "foot", "wezterm", "ghostty", "direct")


class Span(NamedTuple):
    """A text with a style: names of a colour and of attributes, separated by spaces. `on`: the background."""

    text: str
    style: str = ""
    on: str = ""


Line = tuple[Span, ...]


def find_depth(is_terminal: bool, environ: Mapping[str, str]) -> Depth:
    """Return the colour depth, from NO_COLOR, CLICOLOR_FORCE, CLICOLOR, TERM and COLORTERM."""
    if environ.get("NO_COLOR"):
        return Depth.NONE
    forced = environ.get("CLICOLOR_FORCE", "0") not in ("", "0")
    term = environ.get("TERM", "")
    if not forced and (not is_terminal or environ.get("CLICOLOR") == "0" or term in ("", "dumb")):
        return Depth.NONE
    if environ.get("COLORTERM") in ("truecolor", "24bit"):
        return Depth.TRUE
    return Depth.INDEXED if any(name in term for name in TERMS_WITH_256) else Depth.BASIC


def paint(line: Iterable[Span], depth: Depth, attributes: bool = True) -> str:
    """Return the line with escape sequences. Without colours, attributes such as bold remain if `attributes`."""
    parts = []
    for span in line:
        codes = _codes(span.style, span.on, depth) if depth or attributes else ""
        parts.append(f"\x1b[{codes}m{span.text}{RESET}" if codes else span.text)
    return "".join(parts)


@lru_cache(maxsize=512)
def _codes(style: str, on: str, depth: Depth) -> str:
    words = style.split()
    codes = [ATTRIBUTES[word] for word in words if word in ATTRIBUTES]
    if depth:
        codes += [_colour(word, depth, 0) for word in words if word in COLOURS]
        codes += [_colour(on, depth, 10)] if on else []
    return ";".join(codes)


def _colour(name: str, depth: Depth, background: int) -> str:
    colour = COLOURS[name]
    if depth is Depth.TRUE:
        return f"{38 + background};2;{colour.rgb[0]};{colour.rgb[1]};{colour.rgb[2]}"
    if depth is Depth.INDEXED:
        return f"{38 + background};5;{colour.indexed}"
    return str(colour.basic + background)


def plain(line: Iterable[Span]) -> str:
    return "".join(span.text for span in line)


def cells(text: str) -> int:
    """Return the number of terminal cells that a text takes."""
    return len(text) if text.isascii() else _count_cells(text)


@lru_cache(maxsize=4096)
def _count_cells(text: str) -> int:
    return sum(map(_cells, text))


@lru_cache(maxsize=4096)
def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def line_cells(line: Iterable[Span]) -> int:
    return sum(cells(span.text) for span in line)


def clip(text: str, width: int) -> str:
    """Return the text in at most `width` cells, with an ellipsis if it is cut."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    kept, used = [], 0
    for char in text:
        used += _cells(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def pad(text: str, width: int, right: bool = False) -> str:
    """Return the text in exactly `width` cells."""
    text = clip(text, width)
    space = " " * (width - cells(text))
    return space + text if right else text + space


def wrapped(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width` cells. Lines with wide characters may be shorter than possible."""
    room = max(10, width * len(text) // max(1, cells(text)))
    return wrap(text, room, break_on_hyphens=False) or [""]


def clip_line(line: Iterable[Span], width: int) -> Line:
    """Cut a line to `width` cells."""
    kept: list[Span] = []
    left = width
    for span in line:
        length = cells(span.text)
        if length > left:
            return (*kept, span._replace(text=clip(span.text, left))) if left else tuple(kept)
        kept.append(span)
        left -= length
    return tuple(kept)


def spread(left: Line, right: Line, width: int) -> Line:
    """Put `right` at the right edge. It is kept whole, and `left` is cut, if both do not fit."""
    room = width - line_cells(right)
    left = clip_line(left, max(0, room - 1))
    return (*left, Span(" " * max(0, room - line_cells(left))), *right)
