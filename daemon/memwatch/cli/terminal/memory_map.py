"""The map of a pool: a bar of its parts, thresholds through it, and brackets below that name the shares inside.

Pure functions of the JSON of a pool and its shares. A cell of a bar is a character with two colours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from memwatch.cli.terminal.sizes import short
from memwatch.cli.terminal.style import Line, Span, cells, clip
from memwatch.cli.terminal.thresholds import Mark

Json = dict[str, Any]

# From left to right: GPU memory first, so that its bracket starts at the left edge; then used, then available.
ORDER = (
    "devices",
    "anonymous",
    "processes",
    "used",
    "other",
    "shared_memory",
    "huge_pages",
    "kernel",
    "reserved",
    "unattributed",
    "page_cache",
    "available",
    "free",
)
AVAILABLE = frozenset({"page_cache", "available", "free"})


class Look(NamedTuple):
    """Appearance of a part: its colour, its character, and its character where colours are missing."""

    colour: str
    char: str
    plain: str
    word: str


LOOKS: Mapping[str, Look] = {
    "devices": Look("gpu", "█", "█", "GPU"),
    "anonymous": Look("process", "█", "▓", "processes"),
    "processes": Look("gpu", "█", "█", "processes"),
    "used": Look("gpu", "█", "█", "used"),
    "other": Look("process", "█", "▓", "other use"),
    "shared_memory": Look("shared", "█", "▚", "shared"),
    "huge_pages": Look("huge", "█", "▤", "huge pages"),
    "kernel": Look("kernel", "█", "▞", "kernel"),
    "reserved": Look("kernel", "█", "▞", "reserved"),
    "unattributed": Look("rest", "█", "▒", "unattributed"),
    "page_cache": Look("cache", "░", "░", "cache"),
    "available": Look("free", "·", "·", "available"),
    "free": Look("free", "·", "·", "free"),
}
UNKNOWN = Look("muted", "▒", "▒", "")
# Last cell of a holder: a gap of an eighth.
EDGE = "▉"
# A name that does not fit is cut, but not to less than this.
MIN_CLIPPED = 6
# Parts that are memory of GPUs.
GPU_HELD = frozenset({"devices", "processes", "used"})
# Shares that a driver holds of System RAM. A bracket stands below the part "devices", which is their sum.
DEVICE_SHARES = frozenset({"cuda_pool", "gtt", "gpu_buffers", "npu_buffers", "metal_working_set"})


class Part(NamedTuple):
    kind: str
    size_bytes: int


class Segment(NamedTuple):
    """A part of a bar in cells: from `start` up to `end`."""

    part: Part
    start: int
    end: int


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


def parts_of(pool: Json, shares: Sequence[Json] = ()) -> list[Part]:
    """Return the known parts of a pool in the order of the bar. They add up to its size.

    Memory of devices without a separate part is taken out of the part that contains it.
    """
    parts = {kind.removesuffix("_bytes"): size for kind, size in pool["contents"].items() if size}
    parts = parts or _halves(pool)
    held = sum(one["used_bytes"] or 0 for one in shares if is_device_share(one, pool))
    if held and "devices" not in parts:
        around = next((kind for kind in ("unattributed", "used") if parts.get(kind, 0) >= held), None)
        if around is not None:
            parts = {**parts, "devices": held, around: parts[around] - held}
            parts["other"] = parts.pop("used", 0)
    parts = {kind: size for kind, size in parts.items() if size}
    place = {kind: at for at, kind in enumerate(ORDER)}
    return [Part(kind, parts[kind]) for kind in sorted(parts, key=lambda kind: place.get(kind, len(ORDER)))]


def is_device_share(share: Json, pool: Json) -> bool:
    return share["within"] == pool["id"] and share["kind"] in DEVICE_SHARES


def _halves(pool: Json) -> dict[str, int]:
    used, available = pool["used_bytes"], pool["available_bytes"]
    if used is None:
        return {}
    rest, reserved = pool.get("unattributed_bytes") or 0, pool.get("reserved_bytes") or 0
    held = max(0, used - rest - reserved)
    found = {"processes" if rest or reserved else "used": held, "reserved": reserved, "unattributed": rest}
    found["available"] = available if available is not None else max(0, pool["size_bytes"] - used)
    return {kind: size for kind, size in found.items() if size}


def segments(parts: Sequence[Part], whole: int, width: int) -> list[Segment]:
    """Divide `width` cells among the parts. Ends are rounded, so that errors do not add up."""
    found, done = [], 0
    for part in parts:
        start = round(min(1.0, done / whole) * width) if whole else 0
        done += part.size_bytes
        end = round(min(1.0, done / whole) * width) if whole else 0
        found.append(Segment(part, start, end))
    return found


def look_of(kind: str) -> Look:
    return LOOKS.get(kind, UNKNOWN)


def draw_bar(
    found: Sequence[Segment],
    width: int,
    marks: Sequence[Mark] = (),
    has_colour: bool = True,
    names: Sequence[Name] = (),
) -> Line:
    """Draw the bar, with the thresholds of the levels through it and the names of holders inside."""
    row = [Span(" ")] * width
    for segment in found:
        look = look_of(segment.part.kind)
        char = look.char if has_colour else look.plain
        row[segment.start : segment.end] = [Span(char, look.colour)] * (segment.end - segment.start)
    crossed = {mark_cell(one, width): one.level for one in marks} if width >= 20 else {}
    put_names(row, names, crossed)
    for at, level in crossed.items():
        under = row[at]
        solid = under.text in ("█", EDGE)
        row[at] = Span("│", "ink" if solid else level, under.style if solid else "")
    return merge(row)


def mark_cell(mark: Mark, width: int) -> int:
    return min(width - 1, round(mark.at * width))


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


def brackets_of(pool: Json, shares: Sequence[Json], found: Sequence[Segment], width: int) -> list[Bracket]:
    """Return the brackets below a bar: shares where their bytes are, then the available part."""
    inside = [share for share in shares if share["within"] == pool["id"] and share["used_bytes"]]
    held = next((one for one in found if one.part.kind == "devices"), None)
    brackets: list[Bracket] = []
    if held is not None and held.part.size_bytes:
        at, scale = held.start, (held.end - held.start) / held.part.size_bytes
        for share in (one for one in inside if one["kind"] in DEVICE_SHARES):
            end = min(held.end, at + round(share["used_bytes"] * scale))
            size = short(share["used_bytes"])
            name = f"{share['label']} {size}"
            labels = f"{name} ⊂ {pool['label']}", f"{name} ⊂ RAM", name, size
            brackets.append(Bracket(at, end, labels, "gpu"))
            at = end
    left = [one for one in found if one.part.kind in AVAILABLE]
    if left and pool["available_bytes"] is not None:
        size = short(pool["available_bytes"])
        start = max(left[0].start, width - round(pool["available_bytes"] / pool["size_bytes"] * width))
        brackets.append(Bracket(start, width, (f"available {size}", f"avail {size}", size), "muted"))
    own = next((one for one in found if one.part.kind == "anonymous"), None)
    if own is not None:
        size = short(own.part.size_bytes)
        brackets.append(Bracket(own.start, own.end, (f"processes {size}",), "process"))
    return [one for one in brackets if one.end > one.start]


def draw_brackets(brackets: Sequence[Bracket], width: int) -> Line:
    """Draw the brackets in one line, the first with precedence. A label without room inside stands beside.

    A bracket whose cells are taken, or that has no room for its label, is left out, except the first ones.
    """
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
    kept = list(parts)
    while kept:
        line = tuple(span for part in kept for span in _key(part, has_colour))
        if sum(cells(span.text) for span in line) - 2 <= width:
            return (*line[:-1], Span(line[-1].text.rstrip()))
        kept.remove(min(kept, key=lambda part: part.size_bytes))
    return ()


def _key(part: Part, has_colour: bool) -> Line:
    look = look_of(part.kind)
    mark = ("■" if look.char == "█" else look.char) if has_colour else look.plain
    return Span(mark, look.colour), Span(f" {look.word or clip(part.kind, 12)} {short(part.size_bytes)}  ")


def slices(gpu: Json, shares: Sequence[Json], width: int) -> list[tuple[int, int, Json]]:
    """Place the MIG instances of a GPU side by side: start and end of each in cells, by their limits."""
    mine = [one for one in shares if one["within"] == gpu["id"] and one["kind"] == "mig_instance"]
    found, done = [], 0
    whole = max(gpu["size_bytes"], sum(one["limit_bytes"] or 0 for one in mine)) or 1
    for share in mine:
        start = round(done / whole * width)
        done += share["limit_bytes"] or 0
        found.append((start, round(done / whole * width), share))
    return found


def draw_slices(gpu: Json, shares: Sequence[Json], width: int, level_of: Mapping[str, str]) -> Line:
    """Draw the bar of a GPU in MIG mode: its instances side by side, each filled as far as it is used."""
    row = [Span(" ")] * width
    for start, end, share in slices(gpu, shares, width):
        limit, used = share["limit_bytes"] or 0, share["used_bytes"] or 0
        room = max(0, end - start - 1)  # one cell is the edge
        filled = min(room, round(used / limit * room)) if limit else 0
        level = level_of.get(share["id"], "")
        colour = level if level in ("high", "critical") else "gpu"
        row[start : start + filled] = [Span("█", colour)] * filled
        row[start + filled : start + room] = [Span("·", "free")] * (room - filled)
        if end > start:
            row[end - 1] = Span("▏" if end < width else " ", "muted")
    return merge(row)
