"""GET /picture.svg: a machine's memory at one moment as a picture for a report, a chat or a preview of a link.

Its landscape has all pools on one ground at one scale, each with its past.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import ClassVar

from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.core.model import HELD_BY_DEVICES, Absent, PoolKind, Thresholds
from memwatch.core.snapshot import LEVEL_WORDS, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.containment import Growing
from memwatch.reporting.render.drawing import (
    Drawing,
    Rectangle,
    Sign,
    Text,
    list_bytes,
    list_thresholds,
    shorten,
    width_of,
)
from memwatch.reporting.render.memory_map import (
    GPU_MEMORY,
    MemoryMap,
    build_limit_maps,
    build_maps,
    split_gpus,
)
from memwatch.reporting.render.past import Past
from memwatch.reporting.render.tower import (
    BAND_LINES,
    MAX_CELLS,
    MAX_NAMED_POOLS,
    MIN_CELL,
    MIN_TOWER_PIXELS,
    choose_scale,
    draw_band,
    draw_captions,
    draw_cell,
    draw_sliver,
    draw_tower,
    join_past,
)
from memwatch_monitor.render.status_line import StatusLine, Use, build_status_line, count_members
from memwatch_web.api.history_parameters import instant
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.static_files import VARY, accepts_gzip
from memwatch_web.pages.history_data import RANGES, HistoryInput, available_ranges, build_input, find_range
from memwatch_web.pages.history_page import GZIP_LEVEL, PAGE_SECONDS, SERIES_OF_A_POOL
from memwatch_web.pages.landscape_past import (
    build_live_pasts,
    build_pasts,
    choose_live_window,
    choose_window,
    query_past,
    rewind,
)
from memwatch_web.pages.past_picture import draw_past_picture, place_past_picture
from memwatch_web.pages.renderer import Pages, PageServices


class Ink(Struct, frozen=True):
    """Colours of a theme by their use, those of design's palette. `on_bright`: words on weights and on levels."""

    page: str
    text: str
    muted: str
    frame: str
    edge: str
    gpu_family: str
    gpu: str
    weights: str
    cache_used: str
    cache_reserved: str
    process_family: str
    process: str
    shared: str
    kernel: str
    rest: str
    ground: str
    hatch: str
    low: str
    medium: str
    high: str
    critical: str
    critical_area: str
    on_area: str = "#fff"
    on_bright: str = "#14100a"
    links: ClassVar[bool] = False

    def fill(self, kind: str) -> Markup:
        """Return the attributes of bytes of a kind, or of a level."""
        return Markup('fill="{}" stroke="{}"').format(self.area(kind), self.page)

    def stroke(self, kind: str) -> Markup:
        """Return the attributes of a line."""
        form = ' stroke-width="2"' if kind in ("used", "kill") else ""
        if kind.startswith("cap-"):
            cap = self.area(kind.replace("cap", "level"))
            return Markup('fill="none" stroke="{}" stroke-width="3"').format(cap)
        if kind in LEVEL_WORDS or kind == "ghost":
            form = ' stroke-dasharray="3 4"'
        return Markup('fill="none" stroke="{}"').format(self.line(kind)) + Markup(form)  # noqa: S704  a constant

    def words(self, kind: str) -> Markup:
        """Return the attributes of words on bytes of a kind. Those on hatched bytes have a halo.

        Yellow and orange are too pale for words on white: their words are black.
        """
        halo = {"page_cache": self.ground, "unknown": self.ground, "engine-kv_reserved": self.cache_reserved}.get(
            kind
        )
        found = Markup('fill="{}"').format(self.text if kind in ("medium", "high") else self.word(kind))
        form = Markup(' paint-order="stroke" stroke="{}" stroke-width="3" stroke-linejoin="round"')
        return found + form.format(halo) if halo else found

    def strong(self, is_beside: bool) -> Markup:
        """`is_beside`: plain words stand before the strong ones."""
        beside = Markup(' fill="{}"').format(self.text) if is_beside else Markup("")
        return Markup('font-weight="700"') + beside

    def area(self, kind: str) -> str:
        """Return the colour of bytes of a kind, or of a level."""
        if kind in PATTERNS:
            return f"url(#{PATTERNS[kind]})"
        return str(getattr(self, AREAS.get(kind, "rest")))

    def line(self, kind: str) -> str:
        return str(getattr(self, LINES.get(kind, kind if kind in LEVEL_WORDS else "frame")))

    def word(self, kind: str) -> str:
        """Return the colour of words on bytes of a kind, beside them, or about a level."""
        if kind in (*LEVEL_WORDS, "muted"):
            return str(getattr(self, kind))
        if kind in ("page_cache", "engine-kv_reserved", "") or AREAS.get(kind) == "ground":
            return self.text
        return self.on_bright if kind in BRIGHT else self.on_area


# Patterns of the picture by the kind of bytes.
PATTERNS = {"page_cache": "cache", "engine-kv_reserved": "reserved", "unknown": "unknown"}
# The use of a colour, by the kind of bytes. The words are those of memory maps.
AREAS = {
    "devices": "gpu",
    "devices-family": "gpu_family",
    "anonymous": "process",
    "anonymous-family": "process_family",
    "used": "process",
    "used-family": "process_family",
    "shared_memory": "shared",
    "huge_pages": "shared",
    "kernel": "kernel",
    "reserved": "kernel",
    "free": "ground",
    "available": "ground",
    "unknown": "ground",
    "slice": "ground",
    "slice-family": "ground",
    "engine-weights": "weights",
    "engine-draft": "weights",
    "engine-kv_used": "cache_used",
    "engine-kv_cache": "cache_used",
    "level-low": "low",
    "level-medium": "medium",
    "level-high": "high",
    "level-critical": "critical_area",
    "level-critical-family": "critical_area",
}
LINES = {"used": "edge", "kill": "edge", "ghost": "critical", "forecast": "critical", "stalls": "text"}
BRIGHT = frozenset(kind for kind, use in AREAS.items() if use in ("weights", "cache_used", "medium", "high"))
THEMES: Mapping[str, Ink] = {
    "light": Ink(
        page="#ffffff", text="#1b2430", muted="#586374", frame="#7d8998", edge="#1b2430", gpu_family="#2c4d06",
        gpu="#4a7d00", weights="#bfe08a", cache_used="#93c84a", cache_reserved="#e9f5d3", process_family="#1d3f80",
        process="#2f62bd", shared="#14808c", kernel="#44526a", rest="#6b7684", ground="#f7f8fa", hatch="#8ea2c6",
        low="#17734a", medium="#e5b32e", high="#e8803a", critical="#b3202c", critical_area="#b3202c",
    ),
    "dark": Ink(
        page="#0e1116", text="#e6eaf0", muted="#98a4b5", frame="#7d8998", edge="#ffffff", gpu_family="#2a4a06",
        gpu="#4d8200", weights="#b4da78", cache_used="#86bd39", cache_reserved="#1d2b0e", process_family="#233f78",
        process="#3f6fcc", shared="#237c88", kernel="#5c6d85", rest="#6d7479", ground="#11161d", hatch="#3d5176",
        low="#5cc796", medium="#e5b93f", high="#ff9c5c", critical="#ff7d84", critical_area="#c23b46",
    ),
}  # fmt: skip


class Form(Struct, frozen=True):
    """Size of a picture and of its smallest font, and whether it has room for the past.

    `above` and `below`: room for words, and `footer`: the size of those at the bottom, in the size of the font.
    """

    width: int
    height: int
    font: float
    above: float
    below: float
    footer: float
    has_past: bool


FORMS: Mapping[str, Form] = {
    "1200x630": Form(1200, 630, 13.75, above=13.3, below=5.6, footer=1.45, has_past=True),
    "600x315": Form(600, 315, 11.0, above=10.6, below=3.8, footer=1.0, has_past=False),
}


# Sizes of titles, and of the headline by its length, in that of the smallest font.
TITLE, HEADLINES = 1.45, (3.6, 2.4, 2.0)


class Heading(Struct, frozen=True):
    """Words around the landscape, cut to fit. `level`: of the worst pool, or unknown.

    `host_font`, `headline_font`: sizes of the host with the machine, and of the headline; longer ones are smaller.
    """

    level: str
    label: str
    host: str
    host_font: float
    headline: str
    headline_font: float
    grower: str
    figures: str
    relation: str
    moment: str


class Towers(Struct, frozen=True):
    """State of the pools: pasts and the growing process by pool, levels by pool and MIG instance."""

    pasts: Mapping[str, Past] = {}
    growing: Mapping[str, Growing] = {}
    levels: Mapping[str, str] = {}


class Card(Struct, frozen=True):
    """The picture: its form and colours, words around it, the landscape."""

    form: Form
    ink: Ink
    heading: Heading
    drawing: Drawing


class PictureQuery(Struct, frozen=True):
    """A parsed query. `at`: an earlier time in Unix seconds, None for now."""

    at: float | None
    form: Form
    ink: Ink


async def picture(services: PageServices, request: Request) -> Response:
    """Return the picture of the latest sample, or of the time `at` as far as the history has it."""
    snapshot, past = services.current(), build_input(services.monitor)
    wanted = parse_query(request.query_params, snapshot)

    def work() -> bytes:
        return services.pages.card(build_picture(services.pages, snapshot, past, wanted))

    window = choose_window(past, snapshot.unix if wanted.at is None else wanted.at)
    start, end = window.start - past.to_wall, window.end - past.to_wall
    series = SERIES_OF_A_POOL * len(snapshot.pools)
    seconds = PAGE_SECONDS + past.history.estimate_seconds(series, start, end, window.points)
    body = await services.query(("picture.svg", str(request.query_params), snapshot.seq), seconds, work)
    return Response(body, media_type="image/svg+xml")


async def landscape(services: PageServices, request: Request) -> Response:
    """Return the landscape and the holders at the time `at`, for the overview, which shows them in place of now."""
    snapshot, past, query = services.current(), build_input(services.monitor), request.query_params
    span = find_range(query.get("range") or None, available_ranges(past.tiers))
    at = min(instant("at", query.get("at") or None, snapshot.unix), snapshot.unix)
    zipped = accepts_gzip(request)

    def work() -> bytes:
        body = services.pages.landscape_then(snapshot, past, at, span)
        return gzip.compress(body, GZIP_LEVEL, mtime=0) if zipped else body

    window = choose_window(past, at)
    start, end = window.start - past.to_wall, window.end - past.to_wall
    series = SERIES_OF_A_POOL * len(snapshot.pools)
    seconds = PAGE_SECONDS + past.history.estimate_seconds(series, start, end, window.points)
    body = await services.query(("landscape", str(query), snapshot.seq, zipped), seconds, work)
    headers = {"content-encoding": "gzip", "vary": VARY} if zipped else {}
    return HTMLResponse(body, headers=headers)


def parse_query(query: QueryParams, snapshot: Snapshot) -> PictureQuery:
    """Parse `at`, `size` and `theme`. Raises ProblemError."""
    form = FORMS[_choose("size", query.get("size") or next(iter(FORMS)), FORMS)]
    ink = THEMES[_choose("theme", query.get("theme") or next(iter(THEMES)), THEMES)]
    at, now, grain = instant("at", query.get("at") or None, snapshot.unix), snapshot.unix, snapshot.interval_seconds
    if at > now + max(1.0, grain):
        raise ProblemError(422, f"at is {words.moment(at)}, which is in the future: it is {words.moment(now)}.")
    return PictureQuery(None if now - at < max(1.0, grain) else at, form, ink)


def build_picture(pages: Pages, snapshot: Snapshot, past: HistoryInput, wanted: PictureQuery) -> Card:
    """Return the picture. Raises ProblemError if the history has nothing of that time."""
    at, form = wanted.at, wanted.form
    if at is None:
        status, growths = pages.status(snapshot), pages.growths(snapshot)
        window = choose_live_window(past, RANGES[0], snapshot.unix)
        found = query_past(snapshot, past, window) if form.has_past else {}
        pasts = build_live_pasts(snapshot, found, window, past.events, growths) if form.has_past else {}
        growing = {pool: one.growing for pool, one in growths.items()}
        return build_card(snapshot, status, pages.thresholds(snapshot), pasts, growing, form, wanted.ink)
    window = choose_window(past, at)
    found = query_past(snapshot, past, window)
    shown = rewind(snapshot, found, past, at)
    status = build_status_line(shown, [event for event in past.events if event.unix <= at])
    pasts = build_pasts(shown, found, window, past.events, snapshot.unix) if form.has_past else {}
    return build_card(shown, status, pages.thresholds(shown), pasts, {}, form, wanted.ink)


def _choose(name: str, given: str, offered: Mapping[str, object]) -> str:
    if given not in offered:
        raise ProblemError(422, f"{name} is {given[:80]!r}: use one of {', '.join(offered)}.")
    return given


def build_card(
    snapshot: Snapshot,
    status: StatusLine,
    thresholds: Mapping[str, Thresholds],
    pasts: Mapping[str, Past],
    growing: Mapping[str, Growing],
    form: Form,
    ink: Ink,
) -> Card:
    """Return the picture of a state. `pasts` and `growing` are by the id of a pool; a form with room has pasts."""
    maps = (*build_maps(snapshot, thresholds), *build_limit_maps(snapshot, thresholds))
    font = form.font
    top, bottom = form.above * font, form.height - form.below * font
    place = Rectangle(2.5 * font, top, form.width - 5 * font, bottom - top)
    heading = build_heading(snapshot, status, form, snapshot.simulated)
    levels = {one.target: one.level.word for one in snapshot.pressure}
    return Card(form, ink, heading, draw_maps(maps, Towers(pasts, growing, levels), place, font))


def build_heading(snapshot: Snapshot, status: StatusLine, form: Form, is_simulated: bool) -> Heading:
    """Return the words around the landscape, each cut to the room that those beside it leave."""
    small, room = form.font * TITLE, form.width - 5 * form.font
    level = "OK" if status.level == "low" else status.level.upper()
    label = f"{level} {status.label or 'Memory'}"
    machine = snapshot.machine.name
    host = snapshot.host if isinstance(machine, Absent) else f"{snapshot.host} · {machine}"
    used, headline = next(iter(status.uses), None), status.headline
    if headline == "OK" and used is not None and isinstance(used.ratio, float):
        headline = f"{words.ratio(used.ratio)} used"
    figures = tuple(_describe_use(used, status.label))
    least = min((width_of(one, small) + 3 * form.font for one in figures), default=0.0)
    fitting = [
        form.font * one for one in HEADLINES if width_of(headline, form.font * one, strong=True) <= room
    ] or [form.font * HEADLINES[-1]]
    with_figures = (one for one in fitting if width_of(headline, one, strong=True) + least <= room)
    title = next(with_figures, fitting[0])
    headline = shorten(headline, room, title, strong=True)
    beside = room - width_of(headline, title, strong=True) - 3 * form.font
    when = datetime.fromtimestamp(snapshot.unix, timezone.utc)
    form_of_time = "%d %b %Y, %H:%M:%S UTC" if form.has_past else "%d %b %H:%M UTC"
    also = ["simulated"] if is_simulated else []
    moment = " · ".join([when.strftime(form_of_time), *also, *(["memwatch"] if form.has_past else [])])
    foot = form.font * form.footer
    label = shorten(label, room, small, strong=True)
    left = room - width_of(f"{label} ", small, strong=True) - 2 * small
    if width_of(host, form.font) > left:
        host = snapshot.host
    host_font = small if width_of(host, small) <= left else form.font
    return Heading(
        level=status.level,
        label=label,
        host=shorten(host, left, host_font),
        host_font=host_font,
        headline=headline,
        headline_font=title,
        grower=shorten(_describe_grower(status), beside, form.font * 2, strong=True),
        figures=next((one for one in figures if width_of(one, small) <= beside), ""),
        relation=_choose_relation(snapshot, room - width_of(f"{moment}  ", foot), foot),
        moment=moment,
    )


def _describe_grower(status: StatusLine) -> str:
    if status.grower is None:
        return ""
    fastest = status.grower
    if fastest.alike:
        name, rate = f"{count_members(fastest.alike)} of {fastest.process.title}", fastest.all_bytes_per_second
    else:
        name, rate = fastest.process.title, fastest.bytes_per_second
    return f"{name} +{words.size(int(rate))}/s"


def _describe_use(used: Use | None, place: str) -> Iterator[str]:
    """Yield what is used and left, in fewer and fewer words. `place`: what the headline is about."""
    if used is None or isinstance(used.used_bytes, Absent) or isinstance(used.size_bytes, Absent):
        return
    part = f"{words.size_within(used.used_bytes, used.size_bytes)} of {words.size(used.size_bytes)}"
    label = "used" if used.label == f"used of {place}" else used.label
    yield f"{part} {label} · {words.size(max(0, used.size_bytes - used.used_bytes))} left"
    yield f"{part} used"
    yield part


def _choose_relation(snapshot: Snapshot, room: float, font: float) -> str:
    """Return what is inside what, without its figures if these do not fit."""
    choices = [describe_relation(snapshot), describe_relation(snapshot, has_figures=False)]
    fitting = (one for one in choices if width_of(one, font, strong=True) <= room)
    return next(fitting, None) or shorten(choices[-1], room, font, strong=True)


def describe_relation(snapshot: Snapshot, has_figures: bool = True) -> str:
    """Say what is inside what, "CUDA Pool 64.0 GiB ⊂ System RAM 121.7 GiB", else what stands beside each other."""
    labels = {pool.id: pool for pool in snapshot.pools}
    for share in snapshot.shares:
        pool = labels.get(share.within)
        if pool is None or pool.kind in GPU_MEMORY or isinstance(share.used_bytes, Absent):
            continue
        if share.kind in HELD_BY_DEVICES:
            inner, outer = words.size(share.used_bytes), words.size(pool.size_bytes)
            with_figures = f"{share.label} {inner} ⊂ {pool.label} {outer}"
            return with_figures if has_figures else f"{share.label} ⊂ {pool.label}"
    gpus = [pool for pool in snapshot.pools if pool.kind in (PoolKind.VRAM, PoolKind.HBM)]
    many = len(snapshot.pools) > MAX_NAMED_POOLS
    named = [one for one in snapshot.pools if not many or one not in gpus]
    several = [f"{len(gpus)} GPUs"] if many and gpus else []
    if len(several) + len(named) > MAX_NAMED_POOLS:
        return f"{len(snapshot.pools)} pools beside each other"
    with_sizes = (f"{pool.label} {words.size(pool.size_bytes)}" if has_figures else pool.label for pool in named)
    return " beside ".join([*several, *with_sizes])


def draw_maps(maps: Sequence[MemoryMap], state: Towers, place: Rectangle, font: float) -> Drawing:
    """Draw all pools on one ground at one scale; with many GPUs System RAM is a band below them."""
    gpus, others = split_gpus(maps)
    if not gpus:
        return draw_towers(maps, state, place, font)
    band = Rectangle(place.x, place.ground - BAND_LINES * font, place.width, 1.6 * font)
    above = replace(place, height=place.height - (BAND_LINES + 3.2) * font)
    cells = [*gpus, *(one for one in others if not _is_system_ram(one))]
    scale = choose_scale(cells, above.height)
    drawing = draw_towers(cells, state, above, font)
    for one in others:
        if _is_system_ram(one):
            drawing += draw_band(one, band, scale, font)
    return drawing


def _is_system_ram(one: MemoryMap) -> bool:
    return one.pool is not None and one.pool.kind is PoolKind.SYSTEM_RAM


def draw_towers(maps: Sequence[MemoryMap], state: Towers, place: Rectangle, font: float) -> Drawing:
    shown = maps[:MAX_CELLS]
    scale = choose_scale(shown, place.height)
    drawing = Drawing()
    high = [one for one in shown if one.whole.size_bytes * scale >= MIN_TOWER_PIXELS]
    low = [one for one in shown if one not in high]
    gap, sliver, axis = 1.2 * font, 9.5 * font, 3.2 * font
    room, count = place.width - len(low) * sliver, max(1, len(high))
    many = count > MAX_NAMED_POOLS or room / count < MIN_CELL * font
    x, width = place.x + axis * many, (room - axis * many) / count
    for number, one in enumerate(high):
        cell = Rectangle(x, place.y, width - gap, place.height)
        drawing += _draw_pool(one, state, cell, scale, font, many)
        if many and not number:
            top = place.ground - one.whole.size_bytes * scale
            drawing += Drawing(
                texts=tuple(list_bytes(one.whole.size_bytes, Rectangle(x, top, 0, place.ground - top), font))
            )
        x += width
    for one in low:
        drawing += draw_sliver(one, Rectangle(x, place.y, sliver - gap, place.height), scale, font)
        x += sliver
    if len(maps) > len(shown):
        more = f"and {len(maps) - len(shown)} more"
        drawing += Drawing(texts=(Text(place.x + place.width, place.y - 3 * font, plain=more, anchor="end"),))
    return drawing


def _draw_pool(one: MemoryMap, state: Towers, cell: Rectangle, scale: float, font: float, many: bool) -> Drawing:
    """Draw a pool: its past, then what it holds now, with the words beside it."""
    past, growing = state.pasts.get(one.whole.id), state.growing.get(one.whole.id)
    height = one.whole.size_bytes * scale
    ground = Rectangle(cell.x, cell.ground - height, cell.width, height)
    axis = 0.0 if many else 3.2 * font
    gutter = 0.0 if many else min(16.5 * font, cell.width * (0.44 if past is None else 0.38))
    left = ground.width - axis - gutter
    marks = 0.0 if many or past is None else 4.4 * font
    before = (left - marks) * (0.26 if many else 0.42 if left > 40 * font else 0.34) if past is not None else 0.0
    frame = Rectangle(ground.x + axis, ground.y, before, height)
    now = Rectangle(frame.right + marks, ground.y, left - before - marks, height)
    drawing, room = Drawing(), ground.width - axis
    if past is not None:
        found = draw_past_picture(one, past, height, before, ground.y, font, not many)
        drawing += place_past_picture(one, found, frame, font)
        if any(word.unix is not None for word in found.words):  # when it is full, on the line of the title
            room = before - width_of("full ~00:00:00 ", font, strong=True)
    if marks:
        drawing += join_past(one, now, frame.right) + _write_thresholds(one, frame, now.x - 0.4 * font, font)
    if many:
        drawing += draw_cell(one, now, font, growing, state.levels)
    else:
        drawing += draw_tower(one, now, gutter, font, growing, state.levels)
        drawing += draw_captions(one, now, font)
        drawing += Drawing(texts=tuple(list_bytes(one.whole.size_bytes, frame, font)))
    is_titled = many or past is not None
    return drawing + _draw_title(one, frame.x, ground.y, room, font, many) if is_titled else drawing


def _write_thresholds(one: MemoryMap, past: Rectangle, right: float, font: float) -> Drawing:
    """Write the thresholds between past and now, up to `right`, each behind the sign of its level."""
    texts, signs, size = [], [], 0.9 * font
    for mark in list_thresholds(one, past, font):
        left = right - width_of(mark.word, font) - 1.15 * size
        texts.append(Text(right, mark.word_y + 0.36 * font, plain=mark.word, anchor="end", kind=mark.level))
        signs.append(Sign(left, mark.word_y - size / 2, size, mark.level))
    return Drawing(texts=tuple(texts), signs=tuple(signs))


def _draw_title(one: MemoryMap, x: float, top: float, room: float, font: float, many: bool) -> Drawing:
    y, whole = top - (1.1 if many else 2.24) * font, one.whole
    if isinstance(whole.used_bytes, Absent):
        figure = words.absent(whole.used_bytes)
    elif many:
        figure = words.ratio(whole.used_bytes / whole.size_bytes) if whole.size_bytes else ""
    else:
        figure = words.size(whole.size_bytes)
    if width_of(f"{whole.label} ", font, strong=True) + width_of(figure, font) > room:
        figure = ""
    label = whole.label
    if many and width_of(label, font, strong=True) > room:  # towers side by side differ by their number
        label = label.rpartition(" ")[2]
    label = shorten(label, room, font, strong=True)
    return Drawing(texts=(Text(x, y, strong=label, behind=f" {figure}" if figure else ""),))
