"""The process list: grouping, sorting and filtering. Pure functions.

Every client gets the same rows once for each sample, so that sorting costs the daemon nothing. The script of the
page sorts and filters by the same keys (static/processes.js). Without JavaScript the server does it on page load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Literal, TypeVar, get_args

from msgspec import Struct

from memwatch.core.model import Absent, Bytes, Process, Words
from memwatch.core.owners import OwnerKind, OwnerTotal, find_home
from memwatch.core.processes.growth import GrowthTracker, ProcessGrowth, key_of
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.render.owners_json import list_totals
from memwatch.monitor.render.summary import by_footprint
from memwatch_web.pages.top_holders import sort_places, sum_devices

# Sparkline geometry. Pure functions.

# In units of the drawing. The scale spans at least a tenth of the largest value, so that noise looks flat.
WIDTH, HEIGHT, MIN_SPAN = 60, 16, 0.1


def build_path(past: Iterable[tuple[float, int]], start: float, seconds: float) -> str:
    """Return the SVG path of sizes over time, for WIDTH by HEIGHT. Empty for fewer than two points."""
    points = [(at, size) for at, size in past if at >= start]
    if len(points) < 2:
        return ""
    least, most = min(size for _, size in points), max(size for _, size in points)
    span = max(most - least, most * MIN_SPAN, 1)
    top = (most + least + span) / 2  # a flat line is in the middle
    places = [
        (round((at - start) / seconds * WIDTH), round(1 + (top - size) / span * (HEIGHT - 2)))
        for at, size in points
    ]
    return "M" + "L".join(f"{x} {y}" for x, y in _corners(places))


def _corners(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop the inner points of horizontal segments."""
    inner = zip(places, places[1:], places[2:], strict=False)
    kept = [here for before, here, after in inner if not before[1] == here[1] == after[1]]
    return [places[0], *kept, places[-1]]


By = Literal["process", "container", "pod", "job", "unit", "user"]
GROUPS: tuple[By, ...] = get_args(By)
MAX_WORDS_LENGTH = 200
GROWTH_SECONDS = 600.0
MAX_OWNERS, MAX_MEMBERS = 200, 5
# Text columns sort ascending first, numeric columns descending.
WORD_COLUMNS = frozenset({"name", "user", "home"})
PROCESS_COLUMNS = ("pid", "name", "user", "home", "footprint", "rss", "gpu", "growth")
OWNER_COLUMNS = ("name", "processes", "footprint", "rss", "gpu", "cgroup")

Key = int | str | None
T = TypeVar("T")


class ListQueryError(ValueError):
    """An invalid query; the message names the valid values."""


class ListView(Struct, frozen=True):
    """A view of the list: grouping, sort column, order and filter."""

    by: By = "process"
    sort: str = "footprint"
    descending: bool = True
    words: str = ""

    @property
    def is_shared(self) -> bool:
        """Check that it is the default view, which is rendered once for all clients."""
        return (self.sort, self.descending, self.words) == ("footprint", True, "")

    def initial_sort(self, column: str) -> str:
        """Return the initial order of a column."""
        return column if column in WORD_COLUMNS else f"-{column}"

    def sort_value(self, column: str) -> str:
        """Return the order that the button of a column requests: reversed for the current column."""
        if column != self.sort:
            return self.initial_sort(column)
        return column if self.descending else f"-{column}"


class Row(Struct, Generic[T], frozen=True):
    """A row of the table. `keys`: sort keys by column, None if unknown."""

    of: T
    keys: Mapping[str, Key]
    words: str
    is_shown: bool


class ProcessRow(Struct, frozen=True):
    """A process with its growth."""

    process: Process
    grown: ProcessGrowth | None
    spark: str

    @property
    def places(self) -> tuple[tuple[str, Bytes], ...]:
        return sort_places(self.process.device_bytes)

    @property
    def device_bytes(self) -> Bytes | None:
        return sum_devices(self.process.device_bytes)


class OwnerGroup(Struct, frozen=True):
    """An owner with the largest of its listed processes."""

    total: OwnerTotal
    members: tuple[Process, ...]
    more: int

    @property
    def places(self) -> tuple[tuple[str, Bytes], ...]:
        return sort_places(self.total.device_bytes)

    @property
    def device_bytes(self) -> Bytes | None:
        return sum_devices(self.total.device_bytes)


class Listing(Struct, frozen=True):
    """The sorted rows. `groups`: the available groupings. `has_devices`: a process holds GPU memory."""

    view: ListView
    rows: tuple[Row[ProcessRow] | Row[OwnerGroup], ...]
    groups: tuple[By, ...]
    left_out: int
    has_figures: bool
    has_devices: bool = False

    @property
    def shown(self) -> int:
        return sum(row.is_shown for row in self.rows)


def parse_view(by: str, sort: str, words: str) -> ListView:
    """Parse a view from query parameters. Raises ListQueryError."""
    group = next((one for one in GROUPS if one == by), None)
    if group is None:
        raise ListQueryError(f"by is {by[:80]!r}: use one of {', '.join(GROUPS)}.")
    known = PROCESS_COLUMNS if group == "process" else OWNER_COLUMNS
    column = sort.removeprefix("-")
    if column not in known:
        raise ListQueryError(
            f"sort is {sort[:80]!r}: use one of {', '.join(known)}, with a leading - for descending order."
        )
    if len(words) > MAX_WORDS_LENGTH:
        raise ListQueryError(f"q has {len(words)} characters: use {MAX_WORDS_LENGTH} at most.")
    if not words.isprintable():
        raise ListQueryError(
            f"q is {words[:80]!r}, which has non-printable characters: search for a part of a name."
        )
    return ListView(group, column, sort.startswith("-"), words)


def build_listing(snapshot: Snapshot, growth: GrowthTracker, view: ListView) -> Listing:
    found: set[By] = {"process", view.by, *(one.kind for one in snapshot.owners)}
    groups = tuple(sorted(found, key=GROUPS.index))
    devices = any(process.device_bytes for process in snapshot.processes)
    if view.by == "process":
        start = growth.boottime - GROWTH_SECONDS
        grown = {key_of(one.process): one for one in growth.since(start, snapshot.unix - GROWTH_SECONDS)}
        listed = [
            ProcessRow(process, grown.get(key_of(process)), build_path(growth.past(process), start, GROWTH_SECONDS))
            for process in snapshot.processes
        ]
        rows = sort_rows([_row(one, process_keys(one), process_words(one, snapshot), view) for one in listed], view)
        return Listing(view, rows, groups, 0, has_figures=False, has_devices=devices)
    totals = list_totals(snapshot, view.by)
    figures = any(total.cgroup_bytes is not None for total in totals)
    owners = [build_group(total, view.by, snapshot.processes) for total in totals[:MAX_OWNERS]]
    names = snapshot.pod_names if view.by == "pod" else snapshot.container_names
    rows_of_groups = [_row(one, group_keys(one), group_words(one, names), view) for one in owners]
    return Listing(view, sort_rows(rows_of_groups, view), groups, len(totals) - len(owners), figures, devices)


def _row(of: T, keys: Mapping[str, Key], words: str, view: ListView) -> Row[T]:
    return Row(of, keys, words, view.words.lower() in words)


def sort_rows(rows: Iterable[Row[T]], view: ListView) -> tuple[Row[T], ...]:
    """Sort the rows. Equal rows are sorted by footprint, unknown keys are last in both orders."""
    largest_first = sorted(rows, key=lambda row: _number(row.keys["footprint"]), reverse=True)
    known = [row for row in largest_first if row.keys.get(view.sort) is not None]
    unknown = [row for row in largest_first if row.keys.get(view.sort) is None]
    return (*sorted(known, key=lambda row: _order(row.keys[view.sort]), reverse=view.descending), *unknown)


def _order(key: Key) -> tuple[int, str]:
    """Return a comparable key. The keys of one column are all numbers or all text."""
    return (0, key) if isinstance(key, str) else (key or 0, "")


def _number(key: Key) -> int:
    return key if isinstance(key, int) else -1


def process_keys(one: ProcessRow) -> Mapping[str, Key]:
    process = one.process
    return {
        "pid": process.pid,
        "name": _text(process.name),
        "user": _text(process.user),
        "home": _text(find_home(process.unit, process.container)),
        "footprint": _known(process.footprint_low_bytes),
        "rss": _known(process.rss_bytes),
        "growth": one.grown.grown_bytes if one.grown else None,
        "gpu": _number_or_none(one.device_bytes),
    }


def process_words(one: ProcessRow, snapshot: Snapshot) -> str:
    process = one.process
    homes = [word for word in (process.user, process.unit, process.container) if isinstance(word, str)]
    names = [snapshot.container_names.get(home, "") for home in homes]
    return " ".join([str(process.pid), process.title, *homes, *names]).lower()


def build_group(total: OwnerTotal, kind: OwnerKind, processes: Iterable[Process]) -> OwnerGroup:
    members = by_footprint(
        process
        for process in processes
        if process.visible == total.visible and getattr(process, kind) == total.name
    )
    return OwnerGroup(total, tuple(members[:MAX_MEMBERS]), total.processes - min(len(members), MAX_MEMBERS))


def group_keys(one: OwnerGroup) -> Mapping[str, Key]:
    total = one.total
    return {
        "name": _text(total.name),
        "processes": total.processes,
        "footprint": total.footprint_low_bytes,
        "rss": _known(total.rss_bytes),
        "gpu": _number_or_none(one.device_bytes),
        "cgroup": None if total.cgroup_bytes is None else _known(total.cgroup_bytes),
    }


def group_words(one: OwnerGroup, names: Mapping[str, str]) -> str:
    name = one.total.name
    words = [name, names.get(name, "")] if isinstance(name, str) else []
    return " ".join([*words, *(f"{process.pid} {process.title}" for process in one.members)]).lower()


def _known(figure: Bytes) -> int | None:
    return None if isinstance(figure, Absent) else figure


def _number_or_none(figure: Bytes | None) -> int | None:
    return figure if isinstance(figure, int) else None


def _text(words: Words | None) -> str | None:
    return words.lower() if isinstance(words, str) else None
