"""The process table: rows by sort order and filter, groups by unit, and columns by the width of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from memwatch.cli.terminal.figures import short, signed
from memwatch.cli.terminal.frame import Body, View
from memwatch.cli.terminal.moment import mig_label
from memwatch.cli.terminal.state import Region, State
from memwatch.cli.terminal.style import Line, Span, pad
from memwatch.core.model import Process, ShareKind, Words, known_or
from memwatch.core.owners import WITHIN, describe_home
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Json
from memwatch.reporting.render.words import DASH

BAR = 4
MIN_NAME, MAX_NAME, MAX_UNIT = 12, 40, 40
# Growth that is shown in colour.
NOTABLE_GROWTH = 256 << 20


class Row(NamedTuple):
    """A process, or a group of processes of one unit. `members`: processes in the group, 0 for a process."""

    pid: int
    user: str
    name: str
    unit: str
    footprint: int | None
    is_bound: bool
    rss: int | None
    gpu: int | None
    growth: int | None
    gpus: str
    is_orphan: bool = False
    members: int = 0
    indent: str = ""


class Column(NamedTuple):
    """A column. `rank`: columns of a low rank remain in a narrow terminal."""

    key: str
    title: str
    width: int
    rank: int
    is_right: bool
    text: Callable[[Row], str]


def _footprint(row: Row) -> str:
    return ("≥" if row.is_bound else "") + short(row.footprint)


COLUMNS = (
    Column("pid", "PID", 7, 0, True, lambda row: str(row.pid) if not row.members else f"×{row.members}"),
    Column("user", "USER", 8, 4, False, lambda row: row.user),
    Column("name", "NAME", MIN_NAME, 0, False, lambda row: row.indent + row.name),
    Column("footprint", "FOOTPRINT", 10, 0, True, _footprint),
    Column("bar", "", BAR, 5, False, lambda _row: ""),
    Column("rss", "RSS", 6, 2, True, lambda row: short(row.rss)),
    Column("gpu", "GPU", 6, 1, True, lambda row: short(row.gpu) if row.gpu or row.gpu is None else DASH),
    Column("growth", "10MIN", 6, 3, True, lambda row: signed(row.growth)),
    Column("gpus", "ON", 6, 7, False, lambda row: row.gpus),
    Column("unit", "UNIT", 8, 6, False, lambda row: row.unit),
)
SORT_KEYS: Mapping[str, Callable[[Row], Any]] = {
    "footprint": lambda row: -1 if row.footprint is None else row.footprint,
    "rss": lambda row: -1 if row.rss is None else row.rss,
    "gpu": lambda row: -1 if row.gpu is None else row.gpu,
    "growth": lambda row: 0 if row.growth is None else row.growth,
    "pid": lambda row: row.pid,
    "user": lambda row: row.user,
    "name": lambda row: row.name.lower(),
}


def rows_of(snapshot: Snapshot, growth: Mapping[int, Json]) -> list[Row]:
    places = places_of(snapshot)
    return [
        _row(process, unit_of(process, snapshot), growth.get(process.pid, {}), places)
        for process in snapshot.processes
    ]


def places_of(snapshot: Snapshot) -> dict[str, str]:
    """Return a short name of the GPU for each place that holds device memory: "0", "7:2" for a MIG instance."""
    found = {device.id: device.id.removeprefix("gpu") for device in snapshot.devices}
    for share in snapshot.shares:
        if share.device:
            number = share.device.removeprefix("gpu")
            is_mig = share.kind is ShareKind.MIG_INSTANCE
            found[share.id] = f"{number}:{mig_label(share).removeprefix('MIG ')}" if is_mig else number
    return found


def _row(process: Process, unit: str, grown: Json, places: Mapping[str, str]) -> Row:
    held = process.device_bytes
    known = [count for count in held.values() if isinstance(count, int)]
    named = (places.get(place, place.partition(".")[0]) for place, count in held.items() if count != 0)
    on = ",".join(dict.fromkeys(named))
    return Row(
        pid=process.pid,
        user=_text(process.user) or DASH,
        name=process.title,
        unit=unit,
        footprint=known_or(process.footprint_low_bytes, None),
        is_bound=process.footprint_range is not None,
        rss=known_or(process.rss_bytes, None),
        gpu=sum(known) if len(known) == len(held) else None,
        growth=grown.get("grown_bytes"),
        gpus=on or DASH,
        is_orphan=process.orphan,
    )


def _text(word: Words | None) -> str | None:
    return word if isinstance(word, str) else None


def unit_of(process: Process, snapshot: Snapshot) -> str:
    """Return the name of the pod, container or unit that a process belongs to."""
    pod, container = snapshot.pod_names.get(str(process.pod)), snapshot.container_names.get(str(process.container))
    if named := pod or container or (_text(process.job)):
        return named
    home = describe_home(_text(process.unit), _text(process.container)) or DASH
    unit, within, scope = home.partition(WITHIN)
    return unit.removesuffix(".service").removesuffix(".scope") + within + scope


def select(rows: Iterable[Row], state: State) -> list[Row]:
    """Filter, sort and group the rows as the user chose."""
    wanted = state.filter.lower()
    found = [row for row in rows if not wanted or wanted in f"{row.pid} {row.user} {row.name} {row.unit}".lower()]
    return _grouped(found, state) if state.is_tree else _sorted(found, state)


def _sorted(rows: Iterable[Row], state: State) -> list[Row]:
    by_pid = sorted(rows, key=lambda row: row.pid)
    return sorted(by_pid, key=SORT_KEYS[state.sort], reverse=state.descending)


def _grouped(rows: Sequence[Row], state: State) -> list[Row]:
    units: dict[str, list[Row]] = {}
    for row in rows:
        units.setdefault(row.unit, []).append(row)
    found = []
    for group in _sorted([_sum(unit, mine) for unit, mine in units.items()], state):
        mine = _sorted(units[group.unit], state)
        found.append(group)
        found += [row._replace(indent="└ " if row is mine[-1] else "├ ") for row in mine]
    return found


def _sum(unit: str, rows: Sequence[Row]) -> Row:
    def total(figures: Sequence[int | None]) -> int | None:
        known = [figure for figure in figures if figure is not None]
        return sum(known) if known else None

    users, gpus = sorted({row.user for row in rows}), sorted({row.gpus for row in rows} - {DASH})
    return Row(
        pid=min(row.pid for row in rows),
        user=users[0] if len(users) == 1 else f"{len(users)} users",
        name=unit if unit != DASH else "no unit",
        unit=unit,
        footprint=total([row.footprint for row in rows]),
        is_bound=any(row.is_bound or row.footprint is None for row in rows),
        rss=total([row.rss for row in rows]),
        gpu=total([row.gpu for row in rows]),
        growth=total([row.growth for row in rows]),
        gpus=",".join(gpus) or DASH,
        members=len(rows),
    )


@lru_cache(maxsize=8)
def columns_for(width: int, devices: str) -> Sequence[Column]:
    """Return the columns that fit, from left to right. The name and the unit get the room that is left.

    `devices`: the title of their memory, "" without any.
    """
    kept = [
        one._replace(title=devices) if one.key == "gpu" else one
        for one in COLUMNS
        if devices or one.key not in ("gpu", "gpus")
    ]
    while _total(kept) > width and max(one.rank for one in kept):
        kept.remove(max(kept, key=lambda one: one.rank))
    left = max(0, width - _total(kept))
    extra: dict[str, int] = {}
    for key, most, step in (
        ("name", 16, 1.0),
        ("bar", 8, 0.4),
        ("unit", MAX_UNIT, 0.6),
        ("name", MAX_NAME, 1.0),
        ("bar", 24, 1.0),
    ):
        column = next((one for one in kept if one.key == key), None)
        if column is not None:
            now = column.width + extra.get(key, 0)
            more = max(0, min(most - now, round(left * step)))
            extra[key] = extra.get(key, 0) + more
            left -= more
    return [one._replace(width=one.width + extra.get(one.key, 0)) for one in kept]


def _total(columns: Sequence[Column]) -> int:
    return sum(one.width for one in columns) + len(columns)


def add_table(view: View, body: Body, bottom: int) -> None:
    """Add the header and the rows up to the line `bottom`, with the header's cells as regions."""
    snapshot, state = view.moment.snapshot, view.state
    rows = select(rows_of(snapshot, view.moment.growth), state)
    columns = columns_for(view.width - 1, _title_devices(snapshot))
    at = 1
    for one in columns:
        if one.key in SORT_KEYS:
            body.regions.append(Region(len(body.lines), at, at + one.width + 1, f"sort {one.key}"))
        at += one.width + 1
    body.lines.append(_head(columns, state))
    room = max(0, bottom - len(body.lines))
    offset = max(0, min(state.offset, len(rows) - room))
    largest = max((row.footprint or 0 for row in rows if not row.members), default=0)
    for row in rows[offset : offset + room]:
        if not row.members:
            body.regions.append(Region(len(body.lines), 0, view.width, f"row {row.pid}"))
        line = _line(row, columns, largest)
        body.lines.append(_marked(line) if row.pid == state.selected and not row.members else line)
    body.rows, body.total = room, len(rows)
    body.pids = tuple(0 if row.members else row.pid for row in rows)
    if not rows:
        body.lines.append((Span(f" {_empty(view)}", "muted"),))


def _title_devices(snapshot: Snapshot) -> str:
    """Return the title of the column of device memory: "GPU", "DEVICE" with NPUs as well, "" without any."""
    return {"GPU/NPU": "DEVICE"}.get(snapshot.accelerators, snapshot.accelerators) if snapshot.devices else ""


def _empty(view: View) -> str:
    if view.moment.note:
        return ""
    if view.state.filter:
        return f'No process matches "{view.state.filter}". Esc clears the filter.'
    return "No processes."


def _head(columns: Sequence[Column], state: State) -> Line:
    found = [Span(" ")]
    for one in columns:
        is_sorted = one.key == state.sort
        title = one.title + (("↓" if state.descending else "↑") if is_sorted else "")
        found += [Span(pad(title, one.width, one.is_right), "bold accent" if is_sorted else "bold"), Span(" ")]
    return tuple(found)


def _line(row: Row, columns: Sequence[Column], largest: int) -> Line:
    found = [Span(" ")]
    for one in columns:
        if one.key == "bar":
            found += _bar(row, largest, one.width)
        else:
            found.append(Span(pad(one.text(row), one.width, one.is_right), _style(row, one.key)))
        found.append(Span(" "))
    return tuple(found)


def _marked(line: Line) -> Line:
    """Return the row under the cursor: in reverse, which is visible without colours too."""
    return tuple(span if set(span.text) == {"█"} else span._replace(style="reverse bold") for span in line)


def _style(row: Row, key: str) -> str:
    if key == "growth" and row.growth is not None and row.growth >= NOTABLE_GROWTH:
        return "bold high"
    if row.members:
        return "bold"
    if key == "name" and row.is_orphan:
        return "medium"
    return {"user": "muted", "unit": "muted", "gpus": "muted", "gpu": "gpu"}.get(key, "")


def _bar(row: Row, largest: int, width: int) -> list[Span]:
    """Return a bar of the footprint: the part on GPUs, then the rest."""
    if not largest or not row.footprint or row.members:
        return [Span(" " * width)]
    whole = min(width, max(1, round(row.footprint / largest * width)))
    gpu = min(whole, round((row.gpu or 0) / largest * width))
    return [Span("█" * gpu, "gpu"), Span("█" * (whole - gpu), "process"), Span(" " * (width - whole))]
