"""View of one history window: charts, statistics and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from memwatch.history.tiers import Bucket
from memwatch.render.words import duration, timestamp
from memwatch.snapshot import Level, Snapshot
from memwatch_web.api.history_csv import file_name_of
from memwatch_web.pages.annotations import Flag, Gap, most_telling
from memwatch_web.pages.charts import Chart, Curve, charts_of
from memwatch_web.pages.history_data import data_of
from memwatch_web.pages.history_query import Found, Past, found_in
from memwatch_web.pages.time_range import Moves, Range, Stretch, Window, moves_of, ranges_of

# The chart that the server draws for browsers without JavaScript, in units of its view box.
WIDTH, HEIGHT, PICTURE_POINTS = 1000.0, 200.0, 120
AROUND_SECONDS = 300.0
# The last value is current if it is at most this number of points old.
RECENT = 3
EXACT_SECONDS = 10.0


class Asked(Struct, frozen=True):
    """A parsed query. `series`: the selected series, may be empty. `names`: the series to show."""

    window: Window
    series: tuple[str, ...]
    names: tuple[str, ...]

    def href(self, stretch: Stretch, range_name: str | None = None) -> str:
        """Return a permalink to another time range of the same series."""
        return link("history", range_name or self.window.range.name, self.series, stretch)

    def export(self, form: str) -> str:
        """Return the API link for the same data."""
        window = self.window
        bounds = [("from", timestamp(window.start)), ("to", timestamp(window.end)), ("points", str(window.points))]
        query = [("series", ",".join(self.names)), *bounds]
        return "api/v1/history?" + urlencode([*query, ("format", form)] if form != "json" else query, safe=":,")


def link(path: str, range_name: str, series: Sequence[str], stretch: Stretch) -> str:
    query = [("range", range_name)]
    if series:
        query.append(("series", ",".join(series)))
    if stretch.start is not None and stretch.end is not None:
        query += [("from", timestamp(stretch.start)), ("to", timestamp(stretch.end))]
    return f"{path}?{urlencode(query, safe=':,')}"


class Figures(Struct, frozen=True):
    """Statistics of one series, and its line for browsers without JavaScript.

    `last` is None if the series ended before the end of the window.
    """

    curve: Curve
    least: float | None
    mean: float | None
    most: float | None
    most_unix: float | None
    last: float | None
    pieces: tuple[str, ...]


class Drawn(Struct, frozen=True):
    """A chart with its statistics. `top`: end of the scale. `levels`: time spent at each level, as text."""

    chart: Chart
    figures: tuple[Figures, ...]
    top: float
    levels: str


class Entry(Struct, frozen=True):
    """An event in the list, with a link to the minutes around it. `number`: its label in the charts."""

    number: int
    flag: Flag
    href: str


class View(Struct, frozen=True):
    """The part of the page that depends on the window. `data`: chart data for the script."""

    asked: Asked
    moves: Moves
    ranges: tuple[Range, ...]
    drawn: tuple[Drawn, ...]
    gaps: tuple[Gap, ...]
    entries: tuple[Entry, ...]
    left_out: int
    choices: tuple[Chart, ...]
    file_name: str
    data: Mapping[str, Any]

    @property
    def here(self) -> Stretch:
        """Return the shown time range with fixed bounds, for a permalink."""
        return Stretch(self.asked.window.start, min(self.asked.window.end, self.data["now"]))

    @property
    def usual_href(self) -> str:
        return replace(self.asked, series=()).href(Stretch())

    def range_href(self, wanted: Range) -> str:
        return self.asked.href(Stretch(), wanted.name)


class Refused(Struct, frozen=True):
    """An invalid query: the reason and the valid ranges."""

    sentence: str
    ranges: tuple[Range, ...]


def view_of(past: Past, asked: Asked, snapshot: Snapshot) -> View:
    """Build the view of one window."""
    window, now = asked.window, snapshot.unix
    found = found_in(past, window, asked.names, snapshot)
    numbered = list(enumerate(most_telling(found.flags), 1))
    return View(
        asked=asked,
        moves=moves_of(window, now, past.tiers),
        ranges=ranges_of(past.tiers),
        drawn=tuple(_drawn(chart, found) for chart in found.charts),
        gaps=found.gaps,
        entries=tuple(_entry(number, flag, asked, now) for number, flag in numbered),
        left_out=len(found.flags) - len(numbered),
        choices=charts_of(past.history.names(), snapshot),
        file_name=file_name_of(snapshot.host, window.start, window.end),
        data=data_of(found, numbered, snapshot),
    )


def _entry(number: int, flag: Flag, asked: Asked, now: float) -> Entry:
    around = min(AROUND_SECONDS, asked.window.seconds / 4)
    return Entry(number, flag, asked.href(Stretch(flag.unix - around, min(flag.unix + around, now))))


def _drawn(chart: Chart, found: Found) -> Drawn:
    buckets = [found.buckets[curve.name] for curve in chart.curves]
    most = max((bucket.maximum or 0.0 for its_buckets in buckets for bucket in its_buckets), default=0.0)
    top = max(chart.top or 0.0, most) or 1.0
    pairs = zip(chart.curves, buckets, strict=True)
    figures = [_figures(curve, its_buckets, found, top) for curve, its_buckets in pairs]
    return Drawn(chart, tuple(figures), top, levels_in_words(chart, found))


def levels_in_words(chart: Chart, found: Found) -> str:
    """Format the time spent at each level: "Critical for 40 s, high for 3 min." Gaps do not count as OK."""
    if not found.judged.intersection(chart.targets):
        return "No level data in this range."
    runs = found.runs_behind(chart)
    seconds = {level: sum(run.end - run.start for run in runs if run.level is level) for level in reversed(Level)}
    # A point has the worst level within it.
    most = "" if found.window.grain_seconds <= EXACT_SECONDS else "up to "
    spent = ", ".join(f"{level.word} for {most}{duration(length)}" for level, length in seconds.items() if length)
    missing = sum(gap.end - gap.start for gap in found.gaps)
    recorded = max(0.0, found.until - found.window.start - missing)
    text = spent[:1].upper() + spent[1:] if spent else "OK throughout"
    return f"{text} ({duration(recorded)} recorded)." if found.gaps else f"{text}."


def _figures(curve: Curve, buckets: Sequence[Bucket], found: Found, top: float) -> Figures:
    known = [one for one in buckets if one.average is not None]
    if not known:
        return Figures(curve, None, None, None, None, None, ())
    highest = max(known, key=lambda one: one.maximum or 0.0)
    return Figures(
        curve=curve,
        least=min(one.minimum for one in known if one.minimum is not None),
        mean=sum(one.average or 0.0 for one in known) / len(known),
        most=highest.maximum,
        most_unix=highest.boottime,
        last=known[-1].average if found.until - known[-1].boottime < RECENT * found.window.grain_seconds else None,
        pieces=tuple(_pieces(buckets, found.window, top)),
    )


def _pieces(buckets: Sequence[Bucket], window: Window, top: float) -> list[str]:
    """Return the maxima as lists of SVG points, one for each range without a gap."""
    pieces = []
    for known, stretch in groupby(buckets, key=lambda one: one.maximum is not None):
        most: dict[int, float] = {}
        for one in stretch if known else ():
            slot = int((one.boottime - window.start) / window.seconds * PICTURE_POINTS)
            most[slot] = max(most.get(slot, 0.0), one.maximum or 0.0)
        points = [(slot / PICTURE_POINTS * WIDTH, (1 - value / top) * HEIGHT) for slot, value in most.items()]
        pieces.append(" ".join(f"{x:.0f},{y:.1f}" for x, y in points))
    return [piece for piece in pieces if piece]
