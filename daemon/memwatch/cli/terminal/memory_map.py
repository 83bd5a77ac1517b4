"""Draw the map of a pool in cells: a bar of its parts, thresholds through it, brackets of the shares below it.

The layout is that of all displays: `render.memory_map`. A cell of a bar is a character with two colours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from memwatch.cli.terminal.figures import short
from memwatch.cli.terminal.style import Line, Span, cells, clip
from memwatch.core.model import Absent, Pool, Process, Share
from memwatch.core.snapshot import LEVEL_WORDS, Pressure
from memwatch.reporting.render.memory_map import Mark, MemoryMap, Part, Segment, Slice, name_holders

Place = Pool | Share


class Look(NamedTuple):
    """Appearance of a part: its colour, its character, and its character where colours are missing."""

    colour: str
    char: str
    plain: str
    word: str


LOOKS: Mapping[str, Look] = {
    "devices": Look("gpu", "█", "█", "GPU"),
    "anonymous": Look("process", "█", "▓", "processes"),
    "used": Look("process", "█", "▓", "other use"),
    "shared_memory": Look("shared", "█", "▚", "shared"),
    "huge_pages": Look("huge", "█", "▤", "huge pages"),
    "kernel": Look("kernel", "█", "▞", "kernel"),
    "reserved": Look("kernel", "█", "▞", "reserved"),
    "unattributed": Look("rest", "█", "▒", "unattributed"),
    "page_cache": Look("cache", "░", "░", "cache"),
    "available": Look("free", "·", "·", "available"),
    "free": Look("free", "·", "·", "free"),
}
USED_ON_GPU = Look("gpu", "█", "█", "used")
UNKNOWN = Look("muted", "▒", "▒", "")
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


class Bracket(NamedTuple):
    """A bracket from `start` up to `end`. The first of `labels` that fits is shown."""

    start: int
    end: int
    labels: tuple[str, ...]
    style: str


def look_of(kind: str, holder: str = "") -> Look:
    return USED_ON_GPU if kind == "used" and holder == "gpu" else LOOKS.get(kind, UNKNOWN)


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


def merge(row: Sequence[Span]) -> Line:
    """Join neighbours of one style."""
    found: list[Span] = []
    for span in row:
        if found and found[-1][1:] == span[1:]:
            found[-1] = found[-1]._replace(text=found[-1].text + span.text)
        else:
            found.append(span)
    return tuple(found)


def draw_brackets(drawn: MemoryMap, width: int) -> Line:
    """Draw the brackets in one line, the first with precedence. A label without room inside stands beside.

    A bracket whose cells are taken, or that has no room for its label, is left out, except the first ones.
    """
    brackets = [one for one in _brackets(drawn, width) if one.end > one.start]
    row = [Span(" ")] * width
    for number, one in enumerate(brackets):
        length = one.end - one.start
        if any(span.text != " " for span in row[one.start : one.end]):
            continue
        label = next((text for text in one.labels[:-1] or one.labels if cells(text) + 4 <= length), "")
        if not label and one.style == "process":
            continue
        row[one.start : one.end] = [Span(char, one.style) for char in _shape(length)]
        if not label and _put_beside(row, one, brackets[number + 1 :]):
            continue
        label = label or next((text for text in one.labels if cells(text) + 4 <= length), "")
        if label:
            _put(row, one.start + (length - cells(label) - 2) // 2, f" {label} ", f"{one.style} bold")
    return merge(row)


def _brackets(drawn: MemoryMap, width: int) -> Iterator[Bracket]:
    """Yield the brackets of shares, of the available part, and last that of processes: a full line drops it."""
    for one in sorted(drawn.brackets, key=lambda one: one.holder == "processes"):
        start, end = cell_of(one.start, width), cell_of(one.start + one.width, width)
        size = short(one.size_bytes)
        if one.share is not None:
            name = f"{one.label} {size}"
            yield Bracket(start, end, (f"{name} ⊂ {drawn.whole.label}", f"{name} ⊂ RAM", name, size), "gpu")
        elif one.holder == "free":
            yield Bracket(start, end, (f"available {size}", f"avail {size}", size), "muted")
        else:
            yield Bracket(start, end, (f"processes {size}",), "process")


def _shape(width: int) -> str:
    return "╵" if width == 1 else f"└{'─' * (width - 2)}┘"


def _put_beside(row: list[Span], one: Bracket, later: Sequence[Bracket]) -> bool:
    """Write a label beside its bracket, if possible outside of later brackets. False without room."""
    taken = {at for bracket in later for at in range(bracket.start, bracket.end)}
    for blocked in (taken, set[int]()):
        for text in one.labels[:-1] or one.labels:
            size = cells(text)
            for at in (one.end + 1, one.start - size - 1):
                around = row[max(0, at - 1) : at + size + 1]
                is_free = all(span.text == " " for span in around[1:-1]) and not blocked & {*range(at, at + size)}
                if at >= 0 and at + size <= len(row) and is_free:
                    _put(row, at, text, one.style)
                    return True
    return False


def _put(row: list[Span], at: int, text: str, style: str) -> None:
    for offset, char in enumerate(text):
        if 0 <= at + offset < len(row):
            row[at + offset] = Span(char, style)


def legend(parts: Sequence[Part], width: int, has_colour: bool = True) -> Line:
    """Return the key of the colours with sizes, without the smallest parts if there is no room for all."""
    kept = [part for part in parts if part.size_bytes]
    while kept:
        line = tuple(span for part in kept for span in _key(part, has_colour))
        if sum(cells(span.text) for span in line) - 2 <= width:
            return (*line[:-1], Span(line[-1].text.rstrip()))
        kept.remove(min(kept, key=lambda part: part.size_bytes))
    return ()


def _key(part: Part, has_colour: bool) -> Line:
    look = look_of(part.kind, part.holder)
    mark = ("■" if look.char == "█" else look.char) if has_colour else look.plain
    return Span(mark, look.colour), Span(f" {look.word or clip(part.kind, 12)} {short(part.size_bytes)}  ")


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


def whole_of(place: Place) -> int:
    """Return the size of a pool or the limit of a share, 0 if it is unknown."""
    size = place.size_bytes if isinstance(place, Pool) else place.limit_bytes
    return 0 if isinstance(size, Absent) else size


def style_at(fraction: float | None, marks: Sequence[Mark], plain: str = "accent") -> str:
    """Return the level that begins at or below a fraction of the bar, as a style."""
    if fraction is None:
        return ""
    return next((one.level for one in reversed(marks) if fraction >= one.position), plain)
