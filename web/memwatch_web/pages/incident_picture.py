"""The picture of an incident from its own record: memory over time, and who held what at the cut before the kill.

Both are at one scale, on one ground, in one order: memory of GPUs, processes, memory of no process, page cache.
Swap is below the ground at the same scale. A record with fewer figures gets less of a picture. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.snapshot import Level
from memwatch.core.units import size
from memwatch.reporting.incidents.records import Incident, Sample
from memwatch.reporting.incidents.words import (
    Cut,
    find_cut,
    list_fired,
)
from memwatch.reporting.render import words
from memwatch.reporting.render.containment import Node
from memwatch.reporting.render.drawing import (
    LINE_HEIGHT,
    TIME_GAP,
    Drawing,
    Flag,
    Line,
    Rectangle,
    Text,
    list_bytes,
    list_times,
    measure_times,
    place_flag,
    shorten,
    width_of,
)
from memwatch.reporting.render.past import Past, break_at_gaps, draw_past, list_layers, name_layers
from memwatch.reporting.render.tower import mark_used, place_nodes, write_beside
from memwatch_web.pages.incident_holders import (
    build_nodes,
    is_cause,
    list_shares,
    list_stack,
    measure_holders,
    names_of,
    rank_holders,
    split_layers,
)

# A pause is drawn as a gap if it is longer than this, and than this many times the usual one.
MIN_GAP_SECONDS, GAP_FACTOR = 5.0, 4.0
# Less swap, in pixels, and fewer stalls are no picture.
MIN_SWAP_PIXELS, MIN_STALL_RATIO = 1.5, 0.01
STALL_LINES = 1.5
MAX_KILLS = 8
# Seconds after a kill by which its memory has come back.
SETTLE_SECONDS = 5.0
# From this width on, in the size of the font, the past has half of it.
MIN_ROOMY = 100.0
# Where the holders begin, beside their families, in parts of the width.
HOLDERS_FROM = 0.36
# Lines of words above the past, for marks.
MARK_LINES, MARK_ROWS = 4.8, 3
# The cause is named in a mark up to this width, in parts of the font's size: the facts above have its name.
MARK_WIDTH = 14.0


class Moment(Struct, frozen=True):
    """A time in the picture, at the end of a line `y`. `has_seconds`: "10:14:17", else "10:14"."""

    x: float
    y: float
    unix: float
    anchor: str = "middle"
    strong: bool = False
    has_seconds: bool = True

    @property
    def text(self) -> str:
        """Return the time in UTC."""
        return words.clock(self.unix)[: 8 if self.has_seconds else 5]


class Picture(Struct, frozen=True):
    """The picture. `held`: name and bytes of what is drawn at the cut, for those who do not see it."""

    width: float
    height: float
    drawing: Drawing
    moments: tuple[Moment, ...]
    held: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


class Layout(Struct, frozen=True):
    """Form of the picture: its width, the font, and how high the target's size is drawn.

    `is_wide`: the composition stands beside the past, not below it. `height`: of all, for a wide one.
    """

    width: float
    height: float
    font: float
    is_wide: bool

    @property
    def axis(self) -> float:
        """Return the room for the axis of bytes."""
        return 3.8 * self.font

    @property
    def gutter(self) -> float:
        """Return the room for words beside the composition."""
        return (17.0 if self.is_wide else 13.6) * self.font

    @property
    def beside(self) -> str:
        return "shown at right" if self.is_wide else "shown below"

    def place_past(self, depth: float) -> Rectangle:
        """Return the place of the past. `depth`: room that is needed below the ground."""
        above = MARK_LINES * self.font
        part = 0.47 if self.width > MIN_ROOMY * self.font else 0.42
        width = part * self.width if self.is_wide else self.width - self.axis - 2
        return Rectangle(self.axis, above, width, self.height - above - depth if self.is_wide else self.height)

    def place_held(self, past: Rectangle, depth: float) -> Rectangle:
        """Return the place of the composition, at the scale of the past."""
        if not self.is_wide:
            return Rectangle(0.5, past.ground + depth + 4 * self.font, self.width - self.gutter, past.height)
        left = past.right + 4 * self.font
        return Rectangle(left, past.y, self.width - left - self.gutter, past.height)


# Of the page: beside each other on a wide screen, below each other on a narrow one, in the same font.
LAYOUTS: Mapping[str, Layout] = {
    "wide": Layout(1320.0, 276.0, 11.0, True),
    "narrow": Layout(280.0, 190.0, 11.0, False),
}


def draw(one: Incident, layout: Layout) -> Picture | None:
    """Draw the samples of an incident. None with fewer than two."""
    cut, samples = find_cut(one), one.samples
    if cut is None or len(samples) < 2 or samples[-1].unix <= samples[0].unix:
        return None
    whole = max([one.size_bytes or 0, *(sample.used_bytes for sample in samples), 1])
    font = layout.font
    depth = measure_below(samples, whole, layout)
    frame = layout.place_past(depth)
    layers = split_layers(one, whole)
    times = [sample.unix for sample in samples]
    past = _break_at_gaps(Past(tuple(times), times[0], times[-1], layers, tuple(_list_levels(samples))))
    has_levels = any(sample.level for sample in samples)
    kills = [victim.unix for victim in one.victims[:MAX_KILLS] if times[0] <= victim.unix <= times[-1]]
    drawing = draw_past(past, whole, frame, 0.5 * font)
    if not has_levels:  # a strip would claim that all was well
        drawing = replace(drawing, areas=tuple(area for area in drawing.areas if area.kind != "level-low"))
    drawing += _draw_marks(one, past, frame, font, kills) + Drawing(texts=tuple(list_bytes(whole, frame, font)))
    ghost = _draw_ghost(one, cut, past, frame, frame.height / whole, font)
    drawing += ghost
    walls = [past.axis.x(unix, frame) for unix in kills]
    taken = [text.y - part * font for text in ghost.texts for part in (0.0, 0.36, 0.72)]
    named, numbers = _name_past(past, whole, frame, layout, names_of(one, layers), walls, taken)
    legend, depth_of_legend = _write_legend(numbers, frame, depth, font)
    drawing += Drawing(texts=(*named, *legend))
    held_frame = layout.place_held(frame, depth + depth_of_legend)
    below, moments = _draw_below(samples, cut, past, frame, layout, whole)
    nodes = build_nodes(one, cut.sample, whole)
    held, heading = draw_held(nodes, cut, whole, held_frame, layout, one.label)
    ground = frame.ground + depth if layout.is_wide else held_frame.ground + 0.6 * font
    return Picture(
        layout.width,
        ground,
        drawing + below + held,
        (*moments, heading),
        tuple(_list_held(nodes)),
        tuple(_list_notes(one)),
    )


def _name_past(
    past: Past,
    whole: float,
    frame: Rectangle,
    layout: Layout,
    names: Sequence[str],
    walls: Sequence[float],
    taken: Sequence[float],
) -> tuple[list[Text], list[str]]:
    """Return the names in the past, and those of layers that have a number in their place, from 1 on.

    No name is on a height that is `taken`. A wide picture has no numbers: the composition stands beside its past.
    """
    named = list(name_layers(past, whole, frame, layout.font, names, walls, taken))
    shown, numbered = {text.strong for text in named}, list[str]()
    for place, name in enumerate(names if not layout.is_wide else ()):
        if name and name not in shown:
            only = [str(len(numbered) + 1) if place == other else "" for other in range(len(names))]
            if found := list(name_layers(past, whole, frame, layout.font, only, walls, taken)):
                named += found
                numbered.append(name)
    return named, numbered


def _write_legend(names: Sequence[str], frame: Rectangle, depth: float, font: float) -> tuple[list[Text], float]:
    """Write the numbers with their names below a past, and return the height of these rows."""
    texts: list[Text] = []
    left, row = frame.x, 0
    for number, name in enumerate(names, 1):
        plain = shorten(f" {name}", frame.width - 2 * font, font)
        width = width_of(str(number), font, strong=True) + width_of(plain, font)
        if left > frame.x and left + width > frame.right:
            left, row = frame.x, row + 1
        y = frame.ground + depth + (1.0 + LINE_HEIGHT * row) * font
        texts.append(Text(left, y, strong=str(number), behind=plain))
        left += width + font
    return texts, (row + 1) * LINE_HEIGHT * font if names else 0.0


def _list_held(nodes: Iterable[Node]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        yield node.name, node.size_bytes
        yield from _list_held(node.inside)


def _list_notes(one: Incident) -> Iterator[str]:
    if list_shares(one):
        yield "The memory of processes may be in that of the GPU."
    elif any(sample.parts for sample in one.samples):
        yield "Growth between two scans of the processes shows as other processes."
    else:
        yield "The record has the largest processes; all else is other memory."
    if not any(sample.level for sample in one.samples):
        yield "It has no levels."


def draw_held(
    nodes: Sequence[Node], cut: Cut, whole: int, frame: Rectangle, layout: Layout, label: str
) -> tuple[Drawing, Moment]:
    """Draw the composition at the cut in two columns, with its heading. Return its time apart from it."""
    font = layout.font
    has_families = any(node.inside for node in nodes)
    columns = (HOLDERS_FROM, 1.0) if has_families else (1.0,)
    inner = frame.x + frame.width * (HOLDERS_FROM if has_families else 0.0)
    tower = mark_used(
        place_nodes(nodes, frame, columns, font), cut.sample.used_bytes, whole, frame, layout.gutter, font
    )
    drawing = tower.drawing + write_beside(tower.notes, frame, layout.gutter, font)
    heading = Moment(frame.x, frame.y - 2.2 * font, cut.sample.unix, "start", strong=True)
    after = frame.x + width_of("00:00:00 ", font, strong=True)
    captions = [Text(after, heading.y, plain=_describe_cut(cut))]
    if has_families:
        within = f"in {label}"
        fits = width_of(within, font) <= inner - frame.x
        captions += [Text(frame.x, frame.y - 0.7 * font, plain=within, kind="muted")] if fits else []
    plain = "held by" if has_families or not cut.sample.shares else f"in {label}"
    captions.append(Text(inner, frame.y - 0.7 * font, plain=plain, kind="muted"))
    return drawing + Drawing(texts=tuple(captions)), heading


def _describe_cut(cut: Cut) -> str:
    if cut.kill is None:
        return "at the worst"
    return f"{words.duration(max(0.05, cut.kill - cut.sample.unix))} before the kill"


# The past


def _break_at_gaps(past: Past) -> Past:
    steps = [later - earlier for earlier, later in pairwise(past.times)]
    columns = list(zip(*(layer.sizes for layer in past.layers), strict=True))
    times, filled = break_at_gaps(past.times, columns, max(MIN_GAP_SECONDS, GAP_FACTOR * median(steps)))
    return replace(past, times=times, layers=list_layers([layer.kind for layer in past.layers], filled))


def _list_levels(samples: Sequence[Sample]) -> Iterator[tuple[float, float, str]]:
    """Yield from, to and word of each level above OK."""
    start, word = 0.0, None
    for sample in samples:
        if sample.level != word:
            if word is not None and word != Level.LOW.word:
                yield start, sample.unix, word
            start, word = sample.unix, sample.level
    if word is not None and word != Level.LOW.word:
        yield start, samples[-1].unix, word


def _draw_marks(one: Incident, past: Past, frame: Rectangle, font: float, kills: Sequence[float]) -> Drawing:
    """Draw kills as lines, and above the past what happened when: words of the later ones only where they fit."""
    lines = [
        Line("kill", ((x, frame.y - 0.9 * font), (x, frame.ground)))
        for x in (past.axis.x(unix, frame) for unix in kills)
    ]
    texts = []
    placed: list[Flag] = []
    for unix, word, kind in _list_marks(one, past, kills, font):
        x, width = past.axis.x(unix, frame), width_of(word, font, strong=kind != "muted")
        flag = place_flag(x, width, frame, placed, MARK_ROWS)
        if flag is None:
            continue
        placed.append(flag)
        y = frame.y - (1.0 + 1.3 * flag.row) * font
        texts.append(
            Text(flag.left, y, word if kind == "muted" else "", "" if kind == "muted" else word, kind=kind)
        )
        lines.append(Line("tick", ((x, y - 0.8 * font), (x, frame.y - 0.5 * font))))
    return Drawing((), (), tuple(lines), tuple(texts))


def _list_marks(one: Incident, past: Past, kills: Sequence[float], font: float) -> Iterator[tuple[float, str, str]]:
    """Yield time, words and colour of what happened, the most important first."""
    failed = one.killer is not None and one.killer.kind == "program"
    for unix in kills[:1]:
        yield unix, "failed allocation" if failed else "kill" if len(kills) == 1 else "first kill", "critical"
    for word in (Level.CRITICAL.word, Level.HIGH.word):
        began = next((start for start, _, level in past.levels if level == word), None)
        if began is not None and began > past.start:
            yield began, word, word
    if one.cause is not None and past.start < one.cause.began < past.end:
        verb = "starts" if one.cause.is_new else "grows"
        named = f"{one.cause.who} {verb}"
        yield one.cause.began, named if width_of(named, font) <= MARK_WIDTH * font else f"cause {verb}", "muted"
    fired = list_fired(one)
    if fired and past.start <= fired[0].unix <= past.end:
        yield fired[0].unix, "alert", "muted"


def _draw_ghost(one: Incident, cut: Cut, past: Past, frame: Rectangle, scale: float, font: float) -> Drawing:
    """Outline what came back, if the cause was killed: on what is used from then on, as on the overview."""
    cause, victim = one.cause, one.victim
    if cut.kill is None or cause is None or victim is None or not victim.is_cause or victim.pid != cause.pid:
        return Drawing()
    if list_shares(one):
        return Drawing()
    held, beside = measure_holders(cut.sample, rank_holders(one))
    stack, held = list_stack(one), {**held, **beside}
    name = next((name for name in stack if is_cause(one, name)), None)
    x = past.axis.x(cut.kill, frame)
    after = [each.used_bytes for each in one.samples if each.unix > cut.kill + SETTLE_SECONDS]
    if name is None or not after or frame.right - x < 4:
        return Drawing()
    ground = frame.ground - scale * max(after)
    back = held[name] if one.came_back_bytes is None else one.came_back_bytes
    top = max(frame.y, ground - scale * back)
    if ground - top < 4:
        return Drawing()
    place = Rectangle(x, top, frame.right - x, ground - top)
    return Drawing(
        lines=(Line("ghost", ((x, ground), (x, top), (frame.right, top), (frame.right, ground), (x, ground))),),
        texts=tuple(_write_ghost(one, place, font)),
    )


def _write_ghost(one: Incident, place: Rectangle, font: float) -> Iterator[Text]:
    """Yield the words of a killed process where it was, in as few lines as fit, none without room."""
    back = f"{size(one.came_back_bytes)} came back" if one.came_back_bytes else ""
    for lines in ([f"killed, {back}"], ["killed,", back]) if back else (["killed"],):
        width = max(width_of(line, font, strong=True) for line in lines)
        if width + font <= place.width and len(lines) * LINE_HEIGHT * font + 0.4 * font <= place.height:
            for number, line in enumerate(lines):
                y = place.y + (1.2 + number * LINE_HEIGHT) * font
                yield Text(place.x + 0.5 * font, y, strong=line, kind="critical")
            return


def _list_swap(samples: Sequence[Sample]) -> list[tuple[float, int]]:
    """Return the swap in use where it is known."""
    return [(sample.unix, sample.parts["swap"]) for sample in samples if "swap" in sample.parts]


def _list_stalls(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(sample.unix, sample.stall_ratio) for sample in samples if sample.stall_ratio is not None]


def _measure_rows(samples: Sequence[Sample], whole: int, layout: Layout) -> tuple[int, float]:
    """Return the most swap in use and the worst stall, each 0 if it is too small to draw."""
    most = max((swap for _, swap in _list_swap(samples)), default=0)
    worst = max((ratio for _, ratio in _list_stalls(samples)), default=0.0)
    scale = (layout.height - MARK_LINES * layout.font) / whole
    return most if most * scale >= MIN_SWAP_PIXELS else 0, worst if worst >= MIN_STALL_RATIO else 0.0


def measure_below(samples: Sequence[Sample], whole: int, layout: Layout) -> float:
    """Return the room below the ground: for the axis of time, swap at the scale of the rest, and stalls."""
    font = layout.font
    most, worst = _measure_rows(samples, whole, layout)
    rows = 1.9 * font + (STALL_LINES + 0.6) * font * bool(worst)
    if not most:
        return rows
    if not layout.is_wide:
        return rows + max(1.3 * font, most * layout.height / whole) + 0.4 * font
    # The swap takes its part of the height that is left.
    left = layout.height - MARK_LINES * font - rows - 0.4 * font
    return rows + 0.4 * font + max(1.3 * font, left * most / (whole + most))


def _draw_below(
    samples: Sequence[Sample], cut: Cut, past: Past, frame: Rectangle, layout: Layout, whole: int
) -> tuple[Drawing, list[Moment]]:
    """Draw the axis of time, swap at the scale of the rest, and stalls below the ground."""
    font, scale = layout.font, frame.height / whole
    y = frame.ground + 1.4 * font
    x = past.axis.x(cut.sample.unix, frame)
    label = width_of(f"00:00:00 {layout.beside}", font, strong=True)
    left = min(x, frame.right - label - 0.6 * font)
    taken = [(left - frame.x, left - frame.x + label)]
    moments = [
        Moment(frame.x + mark.at * frame.width, y, mark.unix, has_seconds=mark.unit == "seconds")
        for mark in list_times(past.axis, frame.width, measure_times(font), TIME_GAP * font, taken)
    ]
    moments.append(Moment(left, y, cut.sample.unix, "start", strong=True))
    after = left + width_of("00:00:00 ", font, strong=True)
    texts = [Text(after, y, plain=layout.beside, kind="muted")]
    lines = [Line("used", ((x, frame.ground), (x, frame.ground + 0.45 * font)))]
    areas: list[Line] = []
    top = frame.ground + 1.9 * font
    most, worst = _measure_rows(samples, whole, layout)
    if most:
        upper = [(past.axis.x(unix, frame), top + swap * scale) for unix, swap in _list_swap(samples)]
        areas.append(Line("anonymous", (*upper, (upper[-1][0], top), (upper[0][0], top))))
        figures = (f"up to {size(most)}, at this scale", f"up to {size(most)}", size(most))
        texts += _name_row("swap", figures, upper, top + font, frame, font)
        top += max(1.3 * font, most * scale) + 0.4 * font
    if worst:
        ground = top + STALL_LINES * font
        points = [
            (past.axis.x(unix, frame), ground - min(1.0, ratio) * STALL_LINES * font)
            for unix, ratio in _list_stalls(samples)
        ]
        lines.append(Line("stalls", tuple(points)))
        shares = (f"up to {worst:.0%} of 10 s", f"up to {worst:.0%}", f"{worst:.0%}")
        texts += _name_row("stalls", shares, points, ground - 0.45 * font, frame, font)
    return Drawing(tuple(areas), (), tuple(lines), tuple(texts)), moments


def _name_row(
    name: str,
    figures: Sequence[str],
    points: Sequence[tuple[float, float]],
    y: float,
    frame: Rectangle,
    font: float,
) -> list[Text]:
    """Return the name of a row before it, and its largest figure on that side of it where less is drawn.

    `figures`: its words, the longest first; the first that fit are taken.
    """
    rest = points[0][1]
    busy = [x for x, height in points if abs(height - rest) > 1] or [frame.x]
    after, before = frame.right - max(busy), min(busy) - frame.x
    named = Text(frame.x - 0.5 * font, y, plain=name, anchor="end", kind="muted")
    figure = next((one for one in figures if max(after, before) >= width_of(one, font) + font), None)
    if figure is None:
        return [named]
    if after > before:
        return [named, Text(frame.right - 0.5 * font, y, plain=figure, anchor="end", kind="muted")]
    return [named, Text(frame.x + 0.5 * font, y, plain=figure, kind="muted")]
