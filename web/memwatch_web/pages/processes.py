"""Processes as the pages show them: the list, growth and unattributed memory, and one process. Pure functions.

The list is sorted and filtered here, for a page and for each of its live updates. A search looks at all processes
of the machine, not only at those that are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import urlencode

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.accounting.unattributed import HELD_BY_PROCESSES, describe_causes, unattributed_bytes
from memwatch.core.model import (
    Absent,
    AllocatorReport,
    Bytes,
    Process,
    Words,
    known_or,
    name_accelerators,
    sum_figures,
)
from memwatch.core.owners import (
    FoundProcesses,
    OwnerKind,
    OwnerTotal,
    find_caps,
    find_home,
    search_text,
    searched_texts,
)
from memwatch.core.printable import printable
from memwatch.core.processes.growth import GrowthTracker, LeakSuspect, ProcessGrowth, key_of
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.summary import by_footprint
from memwatch_monitor.render.owners_json import list_totals
from memwatch_web.pages.server_charts import SizeChart, build_path, draw_sizes

By = Literal["process", "container", "pod", "job", "unit", "user"]
GROUPS: tuple[By, ...] = get_args(By)
MAX_WORDS_LENGTH = 200
# A smaller rest comes of rounding, and needs no explanation.
MIN_REST_BYTES = 1 << 20
GROWTH_SECONDS = 600.0
MAX_OWNERS, MAX_MEMBERS, MAX_GROWN_PROCESSES = 200, 5, 10
# Rows of a search. A row takes 0.4 ms of the server for each update.
MAX_FOUND = 100
# Rows of processes without a search: 5,000 of them were 3.7 MB of HTML.
MAX_LISTED = 200
# Text columns sort ascending first, numeric columns descending.
WORD_COLUMNS = frozenset({"name", "user", "home"})
PROCESS_COLUMNS = ("pid", "name", "user", "home", "footprint", "rss", "gpu", "growth")
OWNER_COLUMNS = ("name", "processes", "footprint", "rss", "gpu", "cgroup")

Key = int | str | None
T = TypeVar("T")


def sort_places(device_bytes: Mapping[str, Bytes]) -> tuple[tuple[str, Bytes], ...]:
    return tuple(sorted(device_bytes.items(), key=lambda one: (-_number(one[1]), one[0])))


def sum_devices(device_bytes: Mapping[str, Bytes]) -> Bytes | None:
    """Return the GPU memory of a process, None if it has none. A figure that is absent makes the sum absent."""
    return sum_figures(device_bytes.values()) if device_bytes else None


def sum_by_accelerator(places: Iterable[tuple[str, Bytes]]) -> tuple[tuple[str, Bytes], ...]:
    """Return the memory of GPUs and of NPUs, each with its kind: the places of a process, summed up."""
    sums: dict[str, list[Bytes]] = {}
    for place, held in places:
        sums.setdefault(name_accelerators((place,)), []).append(held)
    return tuple((kind, sum_figures(held)) for kind, held in sorted(sums.items()))


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

    @property
    def order(self) -> str:
        return f"-{self.sort}" if self.descending else self.sort

    def stream(self, page: str) -> str:
        """Return the query of the live stream of a page with this view: its name, and what is not the default."""
        name = page if self.by == "process" else f"{page}-{self.by}"
        return name if self.is_shared else f"{name}&{urlencode({'sort': self.order, 'q': self.words})}"

    def href(self, by: str) -> str:
        """Return the link to another grouping with the same search."""
        return "processes?" + urlencode({"by": by, **({"q": self.words} if self.words else {})})

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
    """The sorted rows. `groups`: the available groupings. `has_devices`: processes may have figures of GPU memory.
    `shares_buffers`: processes of an owner together hold more of a place than is used of it, which counts once.

    `total`: processes or named owners of the machine. `count`: those that match. Of more of them than
    rows, the first in the order of the view are shown.
    """

    view: ListView
    rows: tuple[Row[ProcessRow] | Row[OwnerGroup], ...]
    groups: tuple[By, ...]
    total: int
    count: int
    has_figures: bool = False
    has_devices: bool = False
    shares_buffers: bool = False

    @property
    def left_out(self) -> int:
        """Return how many that match have no row."""
        return self.count - len(self.rows)


def has_holders(snapshot: Snapshot) -> bool:
    """Check that processes may have figures of GPU memory. On a Mac none has: a column would be empty.

    A column does not come and go with the processes that hold some.
    """
    are_read = any(device.process_list is not Absent.NOT_READ for device in snapshot.devices)
    return are_read or any(process.device_bytes for process in snapshot.processes)


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
    return ListView(group, column, sort.startswith("-"), printable(words))


def build_listing(snapshot: Snapshot, growth: GrowthTracker, view: ListView) -> Listing:
    found: set[By] = {"process", view.by, *(one.kind for one in snapshot.owners)}
    groups = tuple(sorted(found, key=GROUPS.index))
    devices = has_holders(snapshot)
    if view.by == "process":
        start = growth.boottime - GROWTH_SECONDS
        grown = {key_of(one.process): one for one in growth.lately(GROWTH_SECONDS, snapshot.unix)}
        matches = find_processes(snapshot, view.words)
        listed = [ProcessRow(process, grown.get(key_of(process)), "") for process in matches.processes]
        ordered = sort_rows([Row(one, process_keys(one)) for one in listed], view)[:MAX_LISTED]
        rows = tuple(
            replace(one, of=replace(one.of, spark=build_path(growth.past(one.of.process), start, GROWTH_SECONDS)))
            for one in ordered
        )
        return Listing(view, rows, groups, count_processes(snapshot), matches.count, has_devices=devices)
    totals, words = list_totals(snapshot, view.by), view.words.lower()
    figures = any(total.cgroup_bytes is not None for total in totals)
    names = snapshot.pod_names if view.by == "pod" else snapshot.container_names
    some = totals if words else totals[:MAX_OWNERS]
    built = (build_group(total, view.by, snapshot.processes) for total in some)
    owners = [one for one in built if words in group_words(one, names)]
    rows_of_groups = sort_rows([Row(one, group_keys(one)) for one in owners[:MAX_OWNERS]], view)
    named = sum(total.name is not None for total in totals)
    count, shared = len(owners if words else totals), share_buffers(totals, snapshot)
    return Listing(view, rows_of_groups, groups, named, count, figures, devices, shared)


def share_buffers(totals: Iterable[OwnerTotal], snapshot: Snapshot) -> bool:
    """Return True if the total of an owner is less than the sum of its processes, which share buffers."""
    caps = find_caps(snapshot.processes, snapshot.pools, snapshot.shares)
    return any(total.device_bytes.get(place) == most for total in totals for place, most in caps.items())


def count_processes(snapshot: Snapshot) -> int:
    """Return the number of processes of the machine, of the listed ones while no other is known."""
    scan = snapshot.process_scan
    return len(snapshot.processes) if isinstance(scan, Absent) else max(scan.seen, len(snapshot.processes))


def find_processes(snapshot: Snapshot, words: str) -> FoundProcesses:
    """Return the listed processes, or with `words` those of all processes that have them in one of their texts."""
    if not words:
        return FoundProcesses(snapshot.processes, len(snapshot.processes))
    words, names = words.lower(), snapshot.container_names
    listed = [one for one in snapshot.processes if words in search_text(one.pid, searched_texts(one), names)]
    others = snapshot.unlisted.find(words, names, MAX_FOUND) if snapshot.unlisted else FoundProcesses((), 0)
    return FoundProcesses((*listed, *others.processes)[:MAX_FOUND], len(listed) + others.count)


def sort_rows(rows: Iterable[Row[T]], view: ListView) -> tuple[Row[T], ...]:
    """Sort the rows. Equal rows are sorted by footprint, unknown keys are last in both orders."""
    largest_first = sorted(rows, key=lambda row: _number(row.keys["footprint"]), reverse=True)
    known = [row for row in largest_first if row.keys.get(view.sort) is not None]
    unknown = [row for row in largest_first if row.keys.get(view.sort) is None]
    return (*sorted(known, key=lambda row: _order(row.keys[view.sort]), reverse=view.descending), *unknown)


def _order(key: Key) -> tuple[int, str]:
    """Return a comparable key. The keys of one column are all numbers or all text."""
    return (0, key) if isinstance(key, str) else (key or 0, "")


def _number(key: Key | Absent) -> int:
    return key if isinstance(key, int) else -1


def process_keys(one: ProcessRow) -> Mapping[str, Key]:
    process = one.process
    return {
        "pid": process.pid,
        "name": _text(process.title),
        "user": _text(process.user),
        "home": _text(find_home(process.unit, process.container)),
        "footprint": known_or(process.footprint_low_bytes, None),
        "rss": known_or(process.rss_bytes, None),
        "growth": _number_or_none(one.grown.measured_bytes) if one.grown else None,
        "gpu": _number_or_none(one.device_bytes),
    }


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
        "rss": known_or(total.rss_bytes, None),
        "gpu": _number_or_none(one.device_bytes),
        "cgroup": None if total.cgroup_bytes is None else known_or(total.cgroup_bytes, None),
    }


def group_words(one: OwnerGroup, names: Mapping[str, str]) -> str:
    name = one.total.name
    words = [name, names.get(name, "")] if isinstance(name, str) else []
    return " ".join([*words, *(f"{process.pid} {process.title}" for process in one.members)]).lower()


def _number_or_none(figure: Bytes | None) -> int | None:
    return figure if isinstance(figure, int) else None


def _text(words: Words | None) -> str | None:
    return words.lower() if isinstance(words, str) else None


class WindowedGrowth(Struct, frozen=True):
    """A process that grew in GROWTH_SECONDS, with its growth in the other windows."""

    grown: ProcessGrowth
    windows: Mapping[str, ProcessGrowth | None]


class UnattributedRow(Struct, frozen=True):
    """Unattributed memory of a pool or device share, and its usual causes."""

    id: str
    label: str
    used_bytes: Bytes
    unattributed_bytes: Bytes
    causes: str = ""

    @property
    def is_attributed(self) -> bool:
        return isinstance(self.unattributed_bytes, int) and self.unattributed_bytes < MIN_REST_BYTES


class MemoryHolders(Struct, frozen=True):
    """Growing processes, suspected leaks and unattributed memory. `more_grown`: growing ones that are left out."""

    grown: tuple[WindowedGrowth, ...]
    more_grown: int
    suspects: tuple[LeakSuspect, ...]
    rests: tuple[UnattributedRow, ...]


def find_memory_holders(snapshot: Snapshot, growth: GrowthTracker) -> MemoryHolders:
    unix = snapshot.unix
    grown = [one for one in growth.lately(GROWTH_SECONDS, unix) if one.grown_bytes > 0]
    return MemoryHolders(
        tuple(_window_growth(one, growth, unix) for one in grown[:MAX_GROWN_PROCESSES]),
        len(grown[MAX_GROWN_PROCESSES:]),
        tuple(growth.suspects()),
        tuple(_list_unattributed(snapshot)),
    )


def _window_growth(one: ProcessGrowth, growth: GrowthTracker, unix: float) -> WindowedGrowth:
    windows = growth.windows_of(one.process, unix)
    del windows[f"{GROWTH_SECONDS:.0f}"]
    return WindowedGrowth(one, windows)


def _list_unattributed(snapshot: Snapshot) -> Iterator[UnattributedRow]:
    for pool in snapshot.pools:
        yield UnattributedRow(
            pool.id, pool.label, pool.used_bytes, pool.unattributed_bytes, describe_causes(pool, snapshot)
        )
    for share in snapshot.shares:
        if share.kind in HELD_BY_PROCESSES:
            yield UnattributedRow(
                share.id, snapshot.relation(share), share.used_bytes, unattributed_bytes(share, snapshot)
            )


# The kernel's oom_score and oom_score_adj.
OomScore: TypeAlias = "tuple[int, int] | Absent"


# Labels of its series on the page of one process.
FIGURE_WORDS = {
    "footprint_bytes": "footprint",
    "footprint_low_bytes": "footprint, at least",
    "footprint_high_bytes": "footprint, at most",
}


class ProcessView(Struct, frozen=True):
    """One process. `ended`: it is no longer listed; the figures are its last ones, of `last_unix`.

    `series`: recorded footprint of its unit and container, by kind.
    """

    process: Process
    ended: bool
    last_unix: float
    growth: Mapping[str, ProcessGrowth | None]
    chart: SizeChart | None
    reports: tuple[AllocatorReport, ...]
    oom_score: OomScore
    series: Mapping[str, str] = field(default_factory=dict)


def find_process(snapshot: Snapshot, pid: int) -> Process | None:
    """Return a process of a snapshot, listed or not, None without one."""
    listed = next((one for one in snapshot.processes if one.pid == pid), None)
    return listed or (snapshot.unlisted.by_pid(pid) if snapshot.unlisted else None)


def build_process_view(
    snapshot: Snapshot, growth: GrowthTracker, pid: int, shift: float, oom_score: OomScore
) -> ProcessView | None:
    """Return the view of a process, None if nothing is known of it. `shift`: Unix time minus boot time."""
    past = growth.find(pid)
    listed = find_process(snapshot, pid)
    process = listed or (past.process if past else None)
    if process is None:
        return None
    ended = listed is None
    sizes = list(past.sizes) if past else []
    size = process.footprint_low_bytes
    if not ended and not isinstance(size, Absent):
        sizes.append((snapshot.unix - shift, size))
    return ProcessView(
        process,
        ended,
        sizes[-1][0] + shift if sizes else snapshot.unix,
        growth.windows_of(process, snapshot.unix),
        draw_sizes(sizes, shift),
        tuple(one for one in snapshot.claims if one.pid == pid),
        Absent.NOT_AVAILABLE if ended else oom_score,
    )
