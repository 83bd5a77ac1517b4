"""Data of the overview: the largest holders, firing pools, events, advice about model servers. Pure functions.

The largest model that fits into the room that is left is searched with pauses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.leased import with_leases_used
from memwatch.core.events import Event
from memwatch.core.model import Absent, Bytes, PoolKind, Process, known_or
from memwatch.core.processes.growth import ProcessGrowth, ProcessKey, key_of
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.planning.fit import CPU
from memwatch.planning.model_table import Runnable, list_largest
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render import words
from memwatch.reporting.render.actions import Freed, measure_held
from memwatch.reporting.render.summary import MANY_GPUS, by_footprint, compute_headroom
from memwatch.reporting.render.words import timestamp
from memwatch_monitor.history.tiers import History
from memwatch_monitor.notify.status import Receipt
from memwatch_monitor.render.status_line import MIN_ALIKE, count_members, find_since, is_of_job
from memwatch_web.pages.history_data import RANGES
from memwatch_web.pages.processes import sort_places, sum_devices

# Rows of both tables at the bottom, and of those of many GPUs.
MAX_HOLDERS, MAX_FIRING = 5, 7
# A process that the kernel killed is shown for this time.
GHOST_SECONDS, MAX_GHOSTS = 60.0, 2
# Receivers with a name in the line of what to do.
MAX_NAMED_RECEIVERS = 2
# Kinds of events that an incident of the same target explains, and the level after a change.
OF_INCIDENTS = frozenset({"oom_kill", "level", "alert"})
CHANGED = re.compile(r"→ (?P<after>\w+) \(")
# A level of then is left out: beside the time it would read as a new rise.
NEWS = re.compile(
    rf"alert (?:still )?firing: (?P<about>.+?)(?: (?:{'|'.join(level.label for level in Level)})(?: \([^)]*\))*)?"
    r", now also: (?P<reason>[^;]+)"
)
PID = re.compile(r" \(PID \d+\)")
USED = re.compile(r"(\d+\.\d%) used\b")
# The time in which a process took memory: the row has no room for it.
TOOK = re.compile(r" in [\d.]+ (?:µs|ms|s|min|h|d)(?: \d+ (?:s|min|h))?$")
INCIDENT_ID = re.compile(r" \(\d{8}T\d{6}Z(?:-\d+)?\)$")
KILLED_BY_KERNEL = re.compile(
    r"OOM killer: killed (?P<name>.+) \(\d+\), (?P<size>[\d.,]+ [KMGT]?i?B(?: anonymous)?)"
)
# MIN_ALIKE processes of a job are one row, if each has this much and this part of another.
MIN_ALIKE_BYTES, ALIKE_RATIO = 1 << 30, 0.9
# The earlier value is an average over this time: a single sample may be a spike.
MIN_HISTORY_SECONDS = 10.0


class BarPart(Struct, frozen=True):
    """Part of the bar of a row, as fractions of the largest footprint."""

    holder: str
    start: float
    width: float


class TopHolder(Struct, frozen=True):
    """A process. `places`: its GPU memory by place, largest first. `grown_bytes`: in the last ten minutes.

    `grows`: it is the one that grows fastest now. `alike`: all processes of its job with about its footprint,
    itself first, if they are one row; `device_bytes` is their sum then. `label` names them.
    """

    process: Process
    bar: tuple[BarPart, ...]
    places: tuple[tuple[str, Bytes], ...]
    device_bytes: Bytes | None
    grown_bytes: Bytes
    whole: bool
    grows: bool = False
    alike: tuple[Process, ...] = ()
    label: str = ""

    @property
    def footprints(self) -> str:
        """Format the footprints of those alike: "76.5 – 79.8 GiB each"."""
        low = min(size for one in self.alike if isinstance(size := one.footprint_low_bytes, int))
        highs = [one.footprint_high_bytes for one in self.alike]
        known = [size for size in highs if isinstance(size, int)]
        high: Bytes = max(known) if len(known) == len(highs) else Absent.NOT_AVAILABLE
        return f"{words.between(low, high)} each"


class Ghost(Struct, frozen=True):
    """A process that the kernel killed a moment ago in a pool, and the bytes that came back."""

    pool: str
    name: str
    size_bytes: int
    pid: int
    unix: float


def find_top_holders(
    snapshot: Snapshot,
    grown: Iterable[ProcessGrowth],
    grower: Process | None = None,
    ghosts: Sequence[Ghost] = (),
    rows: int = MAX_HOLDERS,
) -> tuple[TopHolder, ...]:
    """Return the largest processes, the one that grows now first, then largest first: as many as a table has rows.

    `ghosts` have rows of the same table: each takes the place of one, and is no holder in a scan of before.
    """
    first = None if grower is None else key_of(grower)
    killed = {one.pid: one.unix for one in ghosts}
    alive = [one for one in snapshot.processes if one.pid not in killed or _began_after(one, killed[one.pid])]
    ordered = sorted(by_footprint(alive), key=lambda one: key_of(one) != first)
    groups = list(islice(_group_alike(ordered), max(1, rows - len(ghosts))))
    largest = [process for process, *_ in groups]
    growth = {key_of(one.process): one for one in grown}
    scale = max((known_or(process.footprint_high_bytes, -1) for process in largest), default=0)
    built = (
        _build_holder(process, growth.get(key_of(process)), scale, key_of(process) == first) for process in largest
    )
    return tuple(
        _name_alike(one, group) if len(group) > 1 else one for one, group in zip(built, groups, strict=True)
    )


def _group_alike(ordered: Sequence[Process]) -> Iterator[tuple[Process, ...]]:
    """Yield processes in their order, those of a job with about the same footprint together: its ranks."""
    taken: set[ProcessKey] = set()
    large = [one for one in ordered if known_or(one.footprint_low_bytes, -1) >= MIN_ALIKE_BYTES]
    for process in ordered:
        if key_of(process) in taken:
            continue
        group = [one for one in large if key_of(one) not in taken and _is_alike(one, process)]
        if len(group) < MIN_ALIKE:
            group = [process]
        group.sort(key=lambda one: key_of(one) != key_of(process))
        taken.update(key_of(one) for one in group)
        yield tuple(group)


def _is_alike(one: Process, other: Process) -> bool:
    """Return True for two large processes of a job."""
    mine, its = one.footprint_low_bytes, other.footprint_low_bytes
    if isinstance(mine, Absent) or isinstance(its, Absent) or min(mine, its) < MIN_ALIKE_BYTES:
        return key_of(one) == key_of(other)
    return is_of_job(one, other) and min(mine, its) >= ALIKE_RATIO * max(mine, its)


def _name_alike(one: TopHolder, group: tuple[Process, ...]) -> TopHolder:
    sums = [sum_devices(member.device_bytes) for member in group]
    known = [size for size in sums if isinstance(size, int)]
    return replace(
        one,
        alike=group,
        label=f"{count_members(group)} of {one.process.title}",
        places=(),
        device_bytes=sum(known) if len(known) == len(group) else None,
    )


def _began_after(process: Process, unix: float) -> bool:
    return isinstance(process.start_time, float) and process.start_time > unix


def _build_holder(process: Process, grown: ProcessGrowth | None, scale: int, grows: bool) -> TopHolder:
    return TopHolder(
        process=process,
        bar=tuple(_build_bar(process, scale)),
        places=sort_places(process.device_bytes),
        device_bytes=sum_devices(process.device_bytes),
        grown_bytes=grown.measured_bytes if grown else Absent.NOT_AVAILABLE,
        whole=grown is not None and grown.whole,
        grows=grows,
    )


def _build_bar(process: Process, scale: int) -> Iterator[BarPart]:
    """Yield GPU memory, then the resident set. Where both may hold the same pages, the sum is the upper bound."""
    start = 0.0
    devices = sum(figure for figure in process.device_bytes.values() if isinstance(figure, int))
    for holder, held in (("gpu", devices), ("processes", max(0, known_or(process.rss_bytes, -1)))):
        width = min(1.0 - start, held / scale) if scale > 0 else 0.0
        if width > 0:
            yield BarPart(holder, start, width)
            start += width


def value_at(history: History, name: str, boottime: float) -> float | None:
    """Return the average over MIN_HISTORY_SECONDS from a time on, or None without data."""
    try:
        buckets = history.query(name, boottime, boottime + MIN_HISTORY_SECONDS, 1)
    except KeyError:
        return None
    return next((bucket.average for bucket in buckets if bucket.average is not None), None)


class EventRow(Struct, frozen=True):
    """An event with the page that explains it: its incident, else the history of that moment."""

    event: Event
    level: str
    href: str
    word: str

    @property
    def short(self) -> str:
        """Its text without what the page of the event has: "System RAM: high → critical (95.2%)"."""
        return shorten_event(self.event)


def without_id(text: str) -> str:
    """Return the text of an event without the id of its incident: a page links to it, a command line needs it."""
    return INCIDENT_ID.sub("", text)


def shorten_event(event: Event) -> str:
    """Return an event of a level, an alert, an incident or a kill in the width of a table; others as they are."""
    text = event.text
    if event.kind == "level":
        changed, _, rest = text.partition(" (")
        used = USED.match(rest)
        return f"{changed} ({used[1]})" if used else changed
    if event.kind == "alert":
        news = NEWS.match(text)
        return _shorten_news(news["about"], news["reason"]) if news else text.partition(" (")[0]
    if event.kind == "late":
        return text.partition(": ")[0]
    if event.kind == "incident":
        said = PID.sub("", without_id(text)).partition("; ")[0].removesuffix(".")
        said = said.removeprefix("incident ")  # the link of its row has this word
        return TOOK.sub("", said.partition(": no process grew")[0])
    killed = KILLED_BY_KERNEL.fullmatch(text) if event.kind == "oom_kill" else None
    return f"OOM kill: {killed['name']}, {killed['size']}" if killed else without_id(text)


def _shorten_news(about: str, reason: str) -> str:
    """Return a further reason of an alert that fired before: "alert of System RAM, now also: OOM kill"."""
    short = "OOM kill" if reason.startswith("OOM killer: ") else reason.replace(" at the current rate", "")
    return f"alert of {about}, now also: {short}"


def link_events(events: Sequence[Event], incidents: Iterable[Incident], now: float) -> tuple[EventRow, ...]:
    """Return the newest events as rows. `incidents`: those that are kept, in any order."""
    kept = tuple(incidents)
    return tuple(_link_event(event, kept, now) for event in events)


def _link_event(event: Event, incidents: Iterable[Incident], now: float) -> EventRow:
    found = next((one for one in incidents if _is_about(event, one, now)), None)
    if found is not None:
        return EventRow(event, _level_of(event), f"incidents/{found.id}", "incident")
    # Without bounds that move with the time: the stream has the rows once.
    then = f"history?range={RANGES[0].name}&at={timestamp(event.unix)}"
    return EventRow(event, _level_of(event), then, "then")


def _is_about(event: Event, one: Incident, now: float) -> bool:
    if event.kind == "incident":
        return f"({one.id})" in event.text
    end = now if one.ended is None else one.ended
    return event.kind in OF_INCIDENTS and event.target == one.target and one.began <= event.unix <= end


def _level_of(event: Event) -> str:
    """Return the level that an event is about, or "unknown" for others: its glyph."""
    if event.kind == "oom_kill":
        return Level.CRITICAL.word
    changed = CHANGED.search(event.text) if event.kind == "level" else None
    return next((level.word for level in Level if changed and level.label == changed["after"]), "unknown")


def name_few(receipts: Sequence[Receipt]) -> tuple[Receipt, ...]:
    """Return receivers for one line: of more than two those that failed, and the number of others in each state."""
    if len(receipts) <= MAX_NAMED_RECEIVERS:
        return tuple(receipts)
    failed = tuple(one for one in receipts if one.state == "failed")
    states = [one.state for one in receipts if one.state != "failed"]
    noun = "other" if failed else "receiver"
    return (*failed, *(Receipt(words.count(states.count(state), noun), state) for state in dict.fromkeys(states)))


class FiringRow(Struct, frozen=True):
    """A pool or limit above OK, with its largest holder. `since_unix`: None if that event is no longer kept."""

    verdict: Pressure
    label: str
    since_unix: float | None
    holder: Process | None
    held: Freed
    grown_bytes: Bytes


def has_many_gpus(snapshot: Snapshot) -> bool:
    """Return True for a machine whose tables have the rows and widths of firing pools, at every level."""
    return sum(pool.kind in (PoolKind.VRAM, PoolKind.HBM) for pool in snapshot.pools) >= MANY_GPUS


def build_firing(
    snapshot: Snapshot, events: Sequence[Event], grown: Iterable[ProcessGrowth]
) -> tuple[FiringRow, ...]:
    """Return the pools and limits above OK of a machine with many GPUs, worst first. Empty for other machines."""
    if not has_many_gpus(snapshot):
        return ()
    growth = {key_of(one.process): one.measured_bytes for one in grown}
    above = [one for one in snapshot.pressure if one.level > Level.LOW]
    above.sort(key=lambda one: (-one.level, _left(one), -one.ratio))
    return tuple(_build_firing(one, snapshot, events, growth) for one in above[:MAX_FIRING])


def _left(one: Pressure) -> float:
    return inf if isinstance(one.seconds_to_full, Absent) else one.seconds_to_full


def _build_firing(
    one: Pressure, snapshot: Snapshot, events: Sequence[Event], growth: Mapping[ProcessKey, Bytes]
) -> FiringRow:
    held = [(measure_held([process], snapshot, one.target), process) for process in snapshot.processes]
    most, holder = max(held, key=lambda pair: pair[0].low_bytes, default=(Freed(0, 0), None))
    has_one = holder is not None and most.low_bytes > 0
    return FiringRow(
        one,
        snapshot.labels[one.target],
        find_since(one, events),
        holder if has_one else None,
        most,
        growth.get(key_of(holder), Absent.NOT_AVAILABLE) if has_one and holder else Absent.NOT_AVAILABLE,
    )


def advise_engines(snapshot: Snapshot) -> Mapping[str, str | None]:
    """Return the advice by engine. The planner is imported only if a server runs."""
    if not snapshot.engines:
        return {}
    from memwatch.planning.device_totals import advise

    return {engine.id: advise(engine, snapshot) for engine in snapshot.engines}


# Least time between two searches, and the change of the room that needs one; and that time where the model does not
# fit any more. A search takes 20 to 50 ms of CPU time on the machines of the demos (Xeon, CPython 3.11).
PAUSE_SECONDS, STEP_BYTES = 30.0, 1 << 30
LOST_PAUSE_SECONDS = 5.0
# A model that fills more than this part of the room would not fit a moment later.
FILLED = 0.95


class RoomModel:
    """The last search. It is repeated when the room changes."""

    def __init__(self) -> None:
        self._searched = -inf
        self._rooms: dict[str, int] = {}
        self._found: Runnable | None = None

    def find(self, snapshot: Snapshot) -> Runnable | None:
        """Return the largest model that fits, None if none does or if it is not known.

        What leases hold counts as used, as for `memwatch fit --what`.
        """
        rooms = find_rooms(snapshot)
        is_other = rooms.keys() != self._rooms.keys() or any(
            abs(size - self._rooms[name]) >= STEP_BYTES for name, size in rooms.items()
        )
        found = self._found if self._found and fits(self._found, rooms) else None
        is_lost = found is not self._found
        pause = LOST_PAUSE_SECONDS if is_lost else PAUSE_SECONDS
        if not (is_other or is_lost) or 0 <= snapshot.monotonic - self._searched < pause:
            return found
        self._searched, self._rooms = snapshot.monotonic, rooms
        models = list_largest(with_leases_used(snapshot, snapshot.leases)) if rooms else iter(())
        self._found = next((one for one in models if fits(one, rooms, FILLED)), None)
        return self._found


def fits(model: Runnable, rooms: Mapping[str, int], part: float = 1.0) -> bool:
    """Check that a model takes at most this part of the room of its devices."""
    return model.bytes <= part * sum(rooms.get(name, 0) for name in model.devices)


def find_rooms(snapshot: Snapshot) -> dict[str, int]:
    """Return the known bytes that can be allocated, by device, or on the CPU of a machine without one."""
    rooms: dict[str, Bytes] = {one.id: one.headroom_after_reclaim_bytes for one in snapshot.devices}
    ram = compute_headroom(snapshot)
    if not rooms and ram is not None:
        rooms[CPU] = ram.headroom_after_reclaim_bytes
    return {name: room for name, room in rooms.items() if not isinstance(room, Absent)}
