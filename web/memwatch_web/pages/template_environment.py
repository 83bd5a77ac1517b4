"""Environment of the Jinja templates: filters, names of pages, macros."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from jinja2 import Environment
from markupsafe import Markup, escape

from memwatch.build_info import REVISION, __version__
from memwatch.core import units
from memwatch.core.listing import left_out_texts
from memwatch.core.model import Absent, Device
from memwatch.core.owners import find_home
from memwatch.core.printable import printable
from memwatch.core.processes.protected import is_protected
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.core.units import GIB
from memwatch.reporting.incidents.records import title_of
from memwatch.reporting.render import words
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.actions import describe_owner
from memwatch.reporting.render.engine_view import describe_engine, describe_load, list_parts
from memwatch.reporting.render.memory_map import MemoryMap
from memwatch.reporting.render.summary import has_figures, measure_urgency, until_utc
from memwatch_monitor.alerts.rules import EVENTS, title_rule
from memwatch_monitor.render.status_line import count_members
from memwatch_web.pages.charts import DASHES
from memwatch_web.pages.compiled_templates import create_plain_environment
from memwatch_web.pages.devices import short_label
from memwatch_web.pages.landscape_page import PageLandscape, PageTower
from memwatch_web.pages.overview import name_few, without_id
from memwatch_web.pages.processes import has_holders, sum_by_accelerator

# A time of the past whose figure is in words, and how near to it a reading is.
THEN_SECONDS, NEAR_SECONDS = 180.0, 10.0
BREAKS = re.compile(r"\n\s*")
# Kinds that are drawn as a pattern of the page.
PATTERNS = {
    "page_cache": "cache",
    "engine-kv_reserved": "reserved",
    "leased": "leased",
    "unknown": "unknown",
}


class PagePaint:
    """Classes of the shapes of a drawing. The style sheet has their colours."""

    links = True

    @staticmethod
    def fill(kind: str) -> Markup:
        pattern = f' fill="url(#{PATTERNS[kind]})"' if kind in PATTERNS else ""
        return Markup('class="b-{}"').format(kind) + Markup(pattern)  # noqa: S704  a constant

    @staticmethod
    def stroke(kind: str) -> Markup:
        return Markup('class="l-{}"').format(kind)

    @staticmethod
    def words(kind: str) -> Markup:
        return Markup('class="t-{}"').format(kind) if kind else Markup("")

    @staticmethod
    def strong(is_beside: bool) -> Markup:
        """`is_beside`: plain words stand before the strong ones."""
        return Markup('class="strong beside"') if is_beside else Markup('class="strong"')


def pixels(length: float) -> str:
    """Format a length to a tenth: 12.0 is "12"."""
    return f"{length:.1f}".removesuffix(".0")


def gib(size_bytes: int) -> str:
    """Format bytes in GiB to a MiB: "37.021"."""
    return f"{size_bytes / GIB:.3f}".rstrip("0").rstrip(".")


def compact(markup: str) -> Markup:
    """Return markup without line breaks and the spaces behind them: each line is one more field of an event."""
    return Markup(BREAKS.sub("", markup))  # noqa: S704  escaped by the template


def path(points: Sequence[tuple[float, float]]) -> str:
    """Format points as a path."""
    return "M" + "L".join(f"{pixels(x)} {pixels(y)}" for x, y in points)


def steps(points: Sequence[tuple[float, float]]) -> str:
    """Format points as a path of steps. A path moved in time differs from itself in its begin only."""
    (x, y), *others = points
    return f"M{pixels(x)} {pixels(y)}" + "".join(_list_steps((x, y), others))


def _list_steps(start: tuple[float, float], others: Sequence[tuple[float, float]]) -> Iterator[str]:
    x, y = start
    for to_x, to_y in others:
        right, down = to_x - x, to_y - y
        yield (
            f"h{pixels(right)}"
            if not down
            else f"v{pixels(down)}"
            if not right
            else f"l{pixels(right)} {pixels(down)}"
        )
        x, y = to_x, to_y


def maps_of(found: PageLandscape) -> tuple[MemoryMap, ...]:
    """Return the maps of a landscape in their order."""
    towers = tuple(one.map for one in found.towers)
    return (*towers, *(one.map for one in found.slivers), *(one.map for one in found.bands))


def worst_slice(one: MemoryMap, pressure: Mapping[str, Pressure]) -> tuple[str, Pressure] | None:
    """Return the name and the verdict of the worst MIG instance above OK, None without one."""
    judged = [(piece.share, pressure[piece.share.id]) for piece in one.slices if piece.share.id in pressure]
    above = [(share, verdict) for share, verdict in judged if verdict.level > Level.LOW]
    share, verdict = max(above, key=lambda found: measure_urgency(found[1]), default=(None, None))
    return (short_label(share), verdict) if share and verdict else None


def _find_verdicts(one: MemoryMap, pressure: Mapping[str, Pressure]) -> list[Pressure]:
    targets = (one.whole.id, *(piece.share.id for piece in one.slices))
    return [pressure[target] for target in targets if target in pressure]


def describe_room(one: MemoryMap) -> str:
    """Say what is left of a GPU: "13.2 GiB left", or the largest room of a MIG instance: "max 9.5 GiB free"."""
    if not one.slices:
        return f"{words.size(one.whole.available_bytes)} left"
    left = [size for piece in one.slices if not isinstance(size := piece.share.left_bytes, Absent)]
    return f"max {words.size(max(left))} free" if left else words.count(len(one.slices), "slice")


def heading(found: PageLandscape, snapshot: Snapshot) -> Markup:
    """Return the title of the picture: the only pool, or what stands beside what."""
    maps = maps_of(found)
    if found.cells:
        total = words.size(sum(one.map.whole.size_bytes for one in found.towers))
        scale = Markup('<span class="one-scale">, one scale</span>')
        return _title("GPU memory", Markup("{} GPUs, {}{}").format(len(found.towers), total, scale))
    if len(maps) == 1:
        whole = maps[0].whole
        shared = any(_is_unified(device, maps[0]) for device in snapshot.devices)
        return _title(whole.label, words.size(whole.size_bytes) + (", shared by CPU and GPU" if shared else ""))
    carved = {one.map.whole.id for one in found.slivers}
    parts = [f"{one.whole.label} {words.size(one.whole.size_bytes)}" for one in maps]
    joined = " + " if carved and len(found.towers) == 1 else " beside "
    return _title("Memory", joined.join(parts) if len(maps) < 4 else f"{len(maps)} pools")


def _is_unified(device: Device, one: MemoryMap) -> bool:
    inside = {row.share.id for row in one.rows}
    return any(place == one.whole.id or place in inside for place in device.allocates_from)


def _title(name: str, detail: str) -> Markup:
    return Markup('{} <span class="of">{}</span>').format(name, detail)


def describe_then(one: PageTower) -> str:
    """Return what of a pool was used THEN_SECONDS ago, or nothing if its past has no figure of about that time."""
    used = _find_then(one)
    if used is None or not one.map.whole.size_bytes:
        return ""
    return f"{words.duration(THEN_SECONDS)} ago {words.ratio(used / one.map.whole.size_bytes)}"


def describe_cells_then(found: PageLandscape, pressure: Mapping[str, Pressure]) -> Markup | str:
    """Return what of many GPUs was used THEN_SECONDS ago, of the worst one first; only of those with a figure."""
    known = [(one.map, used) for one in found.towers if (used := _find_then(one)) is not None]
    sizes = [one.whole.size_bytes for one, _ in known]
    if not known or not all(sizes):
        return ""
    together = f"{len(known)} GPUs {words.ratio(sum(used for _, used in known) / sum(sizes))}"
    judged = [
        (max(verdicts, key=measure_urgency), one.whole, used)
        for one, used in known
        if (verdicts := _find_verdicts(one, pressure))
    ]
    if not judged:
        return f"{words.duration(THEN_SECONDS)} ago {together}"
    _, worst, used = max(judged, key=lambda found: measure_urgency(found[0]))
    one = f"{words.duration(THEN_SECONDS)} ago {worst.label} {words.ratio(used / worst.size_bytes)}"
    return Markup('{}<span class="then-all"> · {}</span>').format(one, together)


def _find_then(one: PageTower) -> float | None:
    """Return the bytes of a pool that were used THEN_SECONDS ago, None without a figure of about that time."""
    past = one.past.past if one.past else None
    if past is None or not past.times:
        return None
    then = past.end - THEN_SECONDS
    number = min(range(len(past.times)), key=lambda number: abs(past.times[number] - then))
    sizes = [layer.sizes[number] for layer in past.layers[:-1]]
    if abs(past.times[number] - then) > NEAR_SECONDS or None in sizes:
        return None
    return sum(size or 0.0 for size in sizes)


def device_lines(one: MemoryMap, snapshot: Snapshot) -> list[Markup]:
    """Return a line for each device that allocates from a pool: its name, and if it computes."""
    inside = {one.whole.id, *(row.share.id for row in one.rows)}
    found = []
    for device in snapshot.devices:
        if not inside.isdisjoint(device.allocates_from):
            parts = list(_describe_device(device))
            found.append(Markup("<b>{}</b> {}").format(device.name, glue_units(" · ".join(parts))))
    return found


def _describe_device(device: Device) -> Iterator[str]:
    if device.state != "ok":
        yield device.state
    if not isinstance(device.busy_ratio, Absent):
        yield f"{device.busy_ratio:.0%} busy"
    if not isinstance(device.temperature_celsius, Absent):
        yield words.celsius(device.temperature_celsius)
    if not isinstance(device.power_watts, Absent):
        yield words.watts(device.power_watts)
    yield from device.notes


def area_attributes(kind: str) -> Markup:
    return PagePaint.fill(kind)


# HTML of sentences.

_NUMBER = re.compile(r"(?:&lt; )?\d[\d.,]*(?:%| (?:[KMGTPE]iB|B|µs|ms|s|min|h|d|W|°C)(?:/s)?)(?!\w)")


def glue_units(text: str) -> Markup:
    """Escape a sentence and keep each number on one line with its unit."""
    return Markup(_NUMBER.sub(r'<span class="figure">\g<0></span>', str(escape(text))))  # noqa: S704  escaped


def hold_unit(low: int, high: int | Absent) -> str:
    """Format two bounds, which a narrow cell breaks beside the dash and not before the unit."""
    return re.sub(r" (?=\w+$|\w+ –)", "\u00a0", words.between(low, high))


def break_name(text: str) -> Markup:
    """Escape a name such as `guardian.acted` or `GuardianActed`, which a narrow page breaks between its words."""
    return Markup(re.sub(r"(?<=[._+])(?=\w)|(?<=[a-z])(?=[A-Z])", "<wbr>", str(escape(text))))  # noqa: S704  escaped


PATHS = {
    "overview": "/",
    "history": "/history",
    "processes": "/processes",
    "devices": "/devices",
    "machines": "/machines",
    "alerts": "/alerts",
    "about": "/about",
}
# Links of the navigation bar.
LINKS = {name: PATHS[name] for name in ("overview", "history", "processes", "devices")}
LINKS |= {"machines": "/machines", "fit": "/fit", "alerts": "/alerts", "incidents": "/incidents", "about": "/about"}
# Letters that open a page after g.
KEYS = {"overview": "o", "history": "h", "processes": "p", "devices": "d", "fit": "f", "alerts": "a"}
KEYS |= {"machines": "m", "incidents": "n", "about": "i"}
# Macro files, available in templates by name.
PARTS = (
    "parts",
    "holder_parts",
    "alert_parts",
    "engine_parts",
    "landscape_parts",
    "status_parts",
    "device_parts",
    "past_parts",
    "machine_parts",
    "incident_parts",
)
# Filters of templates: `figure | size`.
WORDS = (
    "age",
    "api",
    "architecture",
    "bases",
    "basis",
    "by_age",
    "celsius",
    "change",
    "clock",
    "clock_name",
    "content",
    "duration",
    "elapsed",
    "exact",
    "fact",
    "fault",
    "figure",
    "headroom",
    "hertz",
    "level",
    "moment",
    "ratio",
    "reasons",
    "size",
    "size_within",
    "throttled",
    "timestamp",
    "watts",
    "when",
)

# Filters of the landscape.
LANDSCAPE = (
    area_attributes,
    compact,
    describe_cells_then,
    describe_room,
    describe_then,
    device_lines,
    gib,
    heading,
    maps_of,
    path,
    pixels,
    steps,
    worst_slice,
)


class Macros:
    """Macros of a file, which is loaded by the first use of one: a page uses half of the files."""

    def __init__(self, environment: Environment, file: str) -> None:
        self._environment, self._file = environment, file

    def __getattr__(self, name: str) -> object:
        return getattr(self._environment.get_template(self._file).module, name)


@cache
def shared_environment() -> Environment:
    """Return the environment of this process: its templates are compiled once, even without a cache on disk."""
    return create_environment()


def create_environment() -> Environment:
    """Create the environment: autoescape, undefined names raise."""
    environment = create_plain_environment()
    environment.filters |= {name: getattr(wording, name) for name in WORDS}
    environment.filters |= {
        "glue_units": glue_units,
        "break_name": break_name,
        "title_rule": title_rule,
        "without_id": without_id,
        "list_parts": list_parts,
    }
    environment.filters |= {"describe_engine": describe_engine, "describe_load": describe_load}
    environment.filters["left_out_texts"] = left_out_texts
    environment.filters["title_of"] = title_of
    environment.filters["home"] = find_home
    environment.filters["few_receivers"] = name_few
    environment.filters["count_members"] = count_members
    environment.filters["by_accelerator"] = sum_by_accelerator
    environment.filters["owner"] = lambda process, snapshot: describe_owner(process, snapshot).replace(", ", " · ")
    environment.filters["until_utc"] = until_utc
    # For texts that quote a request or the settings; names are printable since they were read.
    environment.filters["printable"] = printable
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    environment.filters["forecast"] = units.forecast
    environment.filters["sentence_case"] = lambda text: text[:1].upper() + text[1:]
    environment.filters |= {one.__name__: one for one in LANDSCAPE}
    environment.filters["percent"] = lambda part: f"{part * 100:.3f}%"
    environment.filters["whole_percent"] = lambda part: part if isinstance(part, Absent) else f"{part:.0%}"
    environment.tests["absent"] = lambda value: isinstance(value, Absent)
    environment.tests["protected"] = is_protected
    environment.tests["known"] = has_figures
    environment.globals |= {
        "version": __version__,
        "revision": REVISION,
        "dashes": DASHES,
        "page_paint": PagePaint,
        "up": "",  # only error pages may be nested
        "paths": LINKS,
        "keys": KEYS,
        "between": hold_unit,
        "needs_reclaim": wording.needs_reclaim,
        "verdict": wording.verdict,
        "waited": wording.waited,
        "count": wording.count,
        "has_holders": has_holders,
        "rule_names": EVENTS,
        "group_nouns": wording.GROUP_WORDS,
        "why_absent": wording.ABSENT_SENTENCES,
        "not_judged": wording.NOT_JUDGED,
        "absent_word": wording.ABSENT_WORDS,
    }
    environment.globals |= {parts: Macros(environment, f"{parts}.html") for parts in PARTS}
    return environment
