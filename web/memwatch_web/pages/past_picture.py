"""The past of a pool as a picture of any width: heights in pixels, lengths in UNITS from left to right.

A page stretches the shapes and places the words by parts of its width. The shareable picture has a fixed one.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.reporting.render import words
from memwatch.reporting.render.drawing import (
    BESIDE_LINE,
    TIME_GAP,
    Drawing,
    Flag,
    Line,
    Rectangle,
    Text,
    TimeAxis,
    draw_forecast,
    list_thresholds,
    list_times,
    measure_times,
    outline,
    place_flag,
    stack_sizes,
    width_of,
)
from memwatch.reporting.render.memory_map import MemoryMap
from memwatch.reporting.render.past import Past, draw_layers, draw_levels, draw_span, name_layers

# Across the past. An hour or a month has as many.
UNITS = 1200.0
# Pixels by which a line of the past may miss a figure.
NEAR = 0.6
# Time ahead in a past with a forecast, as a part of it.
AHEAD = 0.1
# Widths in pixels for which words are placed: of a past with names in it, and of a narrower one without.
WIDE_PAST, NARROW_PAST = 330.0, 192.0
# Height of the levels above the memory.
STRIP = 6.0


class Word(Struct, frozen=True):
    """Words in a past: at a part of its width, 0 to 1, moved by pixels. `unix`: a time that the words end with."""

    at: float
    y: float
    text: str
    shift: float = 0.0
    anchor: str = "start"
    kind: str = ""
    link: str = ""
    unix: float | None = None


class PastPicture(Struct, frozen=True):
    """A past: areas and lines in UNITS by pixels, words and flags by parts of the width. `now`: place of now.

    `stopped`: time of the last figure, and `stopped_at` its place, if the pool has none now.

    `covers`: what is not page cache, over a ground of page cache: its hatch is not stretched with the picture.
    `wash`: areas of the levels behind the memory. `ahead`: what is held now, in the time of the forecast. `flags`:
    places and kinds of vertical lines.
    """

    past: Past
    drawing: Drawing
    covers: tuple[Line, ...]
    wash: tuple[Line, ...]
    ahead: tuple[Line, ...]
    now: float
    end: float
    flags: tuple[tuple[float, str, str], ...]
    words: tuple[Word, ...]
    times: tuple[Word, ...]
    stopped: float | None = None
    stopped_at: float = 0.0


def draw_past_picture(
    one: MemoryMap, past: Past, height: float, width: float, top: float, font: float, has_words: bool = True
) -> PastPicture:
    """Draw the past of a pool, which is `height` high. `width`: the narrowest. `has_words`: more than times."""
    size = one.whole.size_bytes
    ahead = AHEAD * (past.end - past.start) if past.full_at is not None else 0.0
    window = replace(past, end=past.end + ahead)
    axis, frame = window.axis, Rectangle(0.0, top, UNITS, height)
    now = axis.at(past.end)
    memory = draw_memory(window, size, frame)
    strip = [_round_area(area) for area in draw_levels(window, Rectangle(0.0, top - STRIP, UNITS, STRIP))]
    wash = [_round_area(area) for area in draw_levels(window, frame) if area.kind != "level-low"]
    drawing = Drawing((*memory.areas, *strip), (), memory.lines)
    held = [layer.sizes[-1] or 0.0 for layer in past.layers[:-1]] if past.times else []
    used = min(1.0, sum(held) / size)
    if past.full_at is not None and past.full_at > past.end and past.times:
        y = frame.ground - used * height
        forecast = draw_forecast(axis, past.end, past.full_at, used, frame)
        drawing += Drawing(lines=(Line("used", ((now * UNITS, y), (UNITS, y))), forecast))
    places = Rectangle(0.0, top, width, height)
    named = (*_name_flags(window, places, font), *_name_layers(one, window, places, font)) if has_words else ()
    stopped = _find_last(past)
    return PastPicture(
        past,
        drawing,
        memory.covers,
        tuple(wash),
        tuple(_draw_ahead(past, held, size, replace(frame, x=now * UNITS, width=(1 - now) * UNITS)))
        if ahead
        else (),
        now,
        window.end,
        tuple((axis.at(unix), _kind_of_flag(word), link) for unix, word, link in _list_flags(past)),
        (*named, *_name_full(past, places, font)),
        tuple(write_times(axis, width, past.end, past.end_word, font)),
        stopped,
        0.0 if stopped is None else axis.at(stopped),
    )


def place_past_picture(one: MemoryMap, found: PastPicture, frame: Rectangle, font: float) -> Drawing:
    """Return a past in a frame as wide as it was drawn for: for a picture without the styles of a page."""

    def fit(lines: Iterable[Line]) -> tuple[Line, ...]:
        part = frame.width / UNITS
        return tuple(replace(line, points=tuple((frame.x + x * part, y) for x, y in line.points)) for line in lines)

    flags = (
        Line(kind, ((x, frame.y - 0.8 * font), (x, frame.ground)))
        for x, kind in ((frame.x + at * frame.width, kind) for at, kind, _ in found.flags)
    )
    marks = (
        Line(mark.level, ((frame.x, mark.y), (frame.right, mark.y))) for mark in list_thresholds(one, frame, font)
    )
    return Drawing(
        (
            draw_span("page_cache", frame.x, frame.right, frame),
            *fit(found.covers),
            *fit(found.ahead),
            *fit(found.drawing.areas),
        ),
        (),
        (*fit(found.drawing.lines), *marks, *flags, outline(frame)),
        tuple(_place_word(word, frame, font) for word in (*found.words, *found.times)),
    )


def _place_word(word: Word, frame: Rectangle, font: float) -> Text:
    time = "" if word.unix is None else words.clock(word.unix)
    digits = {"minutes": time[:5], "day": "" if word.unix is None else words.moment(word.unix)[5:10]}
    text = f"{word.text}{digits.get(word.kind, time[:8])}"
    is_plain = word.kind == "muted" or word.kind in digits or word.kind == "seconds"
    is_time = word.kind in digits or word.kind == "seconds"
    x = frame.x + word.at * frame.width + word.shift
    y = word.y or frame.ground + 1.4 * font
    plain, strong = (text, "") if is_plain else ("", text)
    return Text(x, y, plain, strong, anchor=word.anchor, kind="muted" if is_time else word.kind)


class Memory(Struct, frozen=True):
    """Layers of a past, each down to the ground and the lowest one last, and the line of used memory.

    `covers`: what is not page cache, over a ground of page cache.
    """

    areas: tuple[Line, ...]
    covers: tuple[Line, ...]
    lines: tuple[Line, ...]


def draw_memory(past: Past, size_bytes: float, frame: Rectangle) -> Memory:
    """Draw the layers of a past, with few points."""
    found = draw_layers(past, size_bytes, frame)
    return Memory(
        tuple(_down_to_ground(area, frame) for area in reversed(found.areas) if area.kind != "page_cache"),
        tuple(_round_cover(area) for area in _cover_cache(found.areas, frame)),
        tuple(replace(line, points=thin_out(line.points)) for line in found.lines),
    )


def _find_last(past: Past) -> float | None:
    """Return the time of the last figure of a pool without one now. None if it has one, or never had any."""
    columns = list(zip(*(layer.sizes for layer in past.layers), strict=True))
    known = [time for time, column in zip(past.times, columns, strict=True) if None not in column]
    return known[-1] if known and None in columns[-1] else None


def _cover_cache(areas: Iterable[Line], frame: Rectangle) -> Iterator[Line]:
    """Yield free memory above page cache, and the times without figures."""
    left, right = frame.x, frame.right
    for area in areas:
        if area.kind == "page_cache":
            upper = area.points[: len(area.points) // 2]
            first, last = upper[0][0], upper[-1][0]
            yield Line("free", (*upper, (last, frame.y), (first, frame.y)))
            if first > left:
                yield draw_span("free", left, first, frame)
            left = last
    if left < right:
        yield draw_span("free", left, right, frame)


def _down_to_ground(area: Line, frame: Rectangle) -> Line:
    """Return a layer with all below it, which is drawn over it: half of the points."""
    upper = thin_out(area.points[: len(area.points) // 2])
    return replace(area, points=(*upper, (upper[-1][0], frame.ground), (upper[0][0], frame.ground)))


def _round_area(area: Line) -> Line:
    half = len(area.points) // 2
    return replace(area, points=(*thin_out(area.points[:half]), *thin_out(area.points[half:])))


def _round_cover(area: Line) -> Line:
    """Return the upper edge of page cache with fewer points, and the corners above it."""
    return replace(area, points=(*thin_out(area.points[:-2]), *thin_out(area.points[-2:])))


def thin_out(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the points from left to right, or right to left, without those near the lines between others.

    In whole units and half pixels. A line that is left is at most NEAR pixels from each point of before.
    """
    rounded = [(round(x), round(2 * y) / 2) for x, y in points]
    kept = {0, len(rounded) - 1}
    parts = [(0, len(rounded) - 1)]
    while parts:
        first, last = parts.pop()
        (left, start), (right, end) = rounded[first], rounded[last]
        slope = (end - start) / (right - left) if right != left else 0.0
        far, number = max(
            ((abs(rounded[n][1] - start - slope * (rounded[n][0] - left)), n) for n in range(first + 1, last)),
            default=(0.0, first),
        )
        if far > NEAR:
            kept.add(number)
            parts += [(first, number), (number, last)]
    return tuple(rounded[number] for number in sorted(kept))


def _draw_ahead(past: Past, held: Sequence[float], size_bytes: int, frame: Rectangle) -> Iterator[Line]:
    """Yield the layers of now, below the line of used memory, in the time of the forecast."""
    for layer, place in zip(past.layers, stack_sizes(held, size_bytes, frame), strict=False):
        yield draw_span(layer.kind, place.x, place.right, place)


def _list_flags(past: Past) -> Iterator[tuple[float, str, str]]:
    links = past.flag_links or ("",) * len(past.flags)
    return ((unix, word, link) for (unix, word), link in zip(past.flags, links, strict=True))


def _kind_of_flag(word: str) -> str:
    return "critical" if word.startswith("OOM kill") else "muted"


def _name_flags(past: Past, frame: Rectangle, font: float) -> Iterator[Word]:
    """Yield the words of the latest flags, as far as they have room beside each other."""
    placed: list[Flag] = []
    for unix, word, link in reversed([*_list_flags(past)]):
        kind = _kind_of_flag(word)
        width = width_of(word, font, strong=kind == "critical")
        flag = place_flag(past.axis.x(unix, frame), width, frame, placed)
        if flag is not None:
            placed.append(flag)
            at, shift = (past.axis.at(unix), BESIDE_LINE) if flag.anchor == "start" else (1.0, 0.0)
            yield Word(at, frame.y - STRIP - 0.45 * font, word, shift, flag.anchor, kind, link)


def _name_full(past: Past, frame: Rectangle, font: float) -> Iterator[Word]:
    """Yield the time at which the pool is full above the words of flags, if there is room for it."""
    y, room = frame.y - STRIP - 1.8 * font, width_of("full ~00:00:00", font, strong=True)
    if past.full_at is not None and past.full_at > past.end and y >= font and room <= frame.width:
        yield Word(1.0, y, "full ~", 0.0, "end", "critical", unix=past.full_at)


def _name_layers(one: MemoryMap, past: Past, frame: Rectangle, font: float) -> Iterator[Word]:
    """Yield the names of layers where no threshold and no flag is."""
    names = [layer.label for layer in past.layers]
    walls = [past.axis.x(unix, frame) for unix, _ in past.flags]
    marks = [mark.y for mark in list_thresholds(one, frame, font)]
    for text in name_layers(past, one.whole.size_bytes, frame, font, names, walls, marks):
        yield Word(text.x / frame.width, text.y, text.strong, 0.0, text.anchor, text.kind)


def write_times(
    axis: TimeAxis, width: float, end: float, end_word: str, font: float, narrowest: float | None = None
) -> Iterator[Word]:
    """Yield the times below a past, and the word of the end of its data, if any. Kinds are units of the step.

    The word of the end is whole at `narrowest` as well, by default `width`: where half of it has no room behind the
    end, it ends there.
    """
    at = axis.at(end)
    length, least = width_of(end_word, font, strong=True), width if narrowest is None else narrowest
    anchor = "middle" if at * least + length / 2 <= least else "end"
    right = at * width + (length / 2 if anchor == "middle" else 0.0)
    taken = [(right - length, right)] if end_word else []
    for mark in list_times(axis, width, measure_times(font), TIME_GAP * font, taken):
        yield Word(mark.at, 0.0, "", 0.0, "middle", mark.unit, unix=mark.unix)
    if end_word and length <= width:
        yield Word(at, 0.0, end_word, 0.0, anchor)
