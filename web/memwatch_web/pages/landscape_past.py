"""The past of pools in the words of the landscape: layers, levels and events, and the state at an earlier time.

Pure functions of a snapshot and the stored history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.model import Absent, Bytes, Content, Pool, Process, Share
from memwatch.core.processes.growth import GrowthTracker, ProcessGrowth
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render import words
from memwatch.reporting.render.containment import Growing
from memwatch.reporting.render.memory_map import AVAILABLE, GPU_MEMORY, build_parts
from memwatch.reporting.render.past import Layer, Past, find_sources, list_past_layers, split, split_now
from memwatch_monitor.history.holders import FOOTPRINTS, parse_name
from memwatch_monitor.history.series import AllSeries
from memwatch_monitor.history.tiers import Bucket
from memwatch_monitor.render.status_line import KILLED, Grower, rank_growers
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.charts import find_level_spans, find_pool
from memwatch_web.pages.history_data import (
    RANGES,
    HistoryInput,
    Range,
    TimeWindow,
    build_window,
    find_seconds_to_full,
    list_columns,
    row_seconds,
)
from memwatch_web.pages.overview import GHOST_SECONDS, MIN_HISTORY_SECONDS, Ghost, value_at

POINTS = 120
# A past is drawn again within a step if used memory has moved by this part of its pool.
NEAR_RATIO = 0.01
# Holders are recorded every ten seconds.
HOLDER_SECONDS, HOLDER_POINTS = 20.0, 4
# A family has taken what a process grew by if it rose by this part of it: other memory in it may have been freed.
MIN_RISE_RATIO = 0.5
# Steady growth that begins between two readings is at most this part of their step off the line between them.
MAX_BEGIN_RATIO = 0.25
# A reading of a process that grows is more than the one before by this part of the latest step.
MIN_STEP_RATIO = 0.2


def choose_window(past: HistoryInput, end: float) -> TimeWindow:
    """Return the ten minutes before a time."""
    found = build_window(RANGES[0], max(0.0, end - RANGES[0].seconds), max(1.0, end), end, past.tiers)
    return replace(found, points=POINTS, grain_seconds=max(found.grain_seconds, found.seconds / POINTS))


def query_past(snapshot: Snapshot, past: HistoryInput, window: TimeWindow) -> dict[str, PoolPast]:
    """Return the past of every pool, by its id."""
    found = {}
    for pool in snapshot.pools:
        names = find_sources(pool, snapshot.shares).names
        buckets = {name: past.buckets(name, window) for name in names}
        levels = past.buckets(f"pressure.{pool.id}.level", window)
        times = tuple(one.boottime for one in buckets[names[0]])
        found[pool.id] = PoolPast(times, tuple(list_columns(pool, buckets, snapshot.shares)), tuple(levels))
    return found


class PoolPast(Struct, frozen=True):
    """Sizes of the layers of a pool at these times in Unix seconds, and its levels."""

    times: tuple[float, ...]
    columns: tuple[tuple[float | None, ...], ...]
    levels: tuple[Bucket, ...]

    @property
    def last(self) -> tuple[float, ...]:
        """Return the sizes at the last time that has them, or nothing."""
        known = (column for column in reversed(self.columns) if None not in column)
        return tuple(size or 0.0 for size in next(known, ()))


def build_pasts(
    snapshot: Snapshot, found: Mapping[str, PoolPast], window: TimeWindow, events: Sequence[Event], latest: float
) -> dict[str, Past]:
    """Return the past of each pool in the words of the landscape."""
    pasts = {}
    for pool in snapshot.pools:
        its = found[pool.id]
        spans = find_level_spans(its.levels, window.grain_seconds)
        known = [time for time, column in zip(its.times, its.columns, strict=True) if None not in column]
        pasts[pool.id] = Past(
            its.times,
            max(window.start, min(known, default=window.start)),
            window.end,
            list_past_layers(pool, snapshot.shares, its.columns, snapshot.labels),
            tuple((span.start, span.end, span.level.word) for span in spans),
            None if (left := find_seconds_to_full(pool.id, snapshot)) is None else snapshot.unix + left,
            tuple(_list_kills(events, pool.id, window)),
            "now" if snapshot.unix >= latest else words.clock(snapshot.unix)[:8],
        )
    return pasts


def _list_kills(events: Sequence[Event], pool: str, window: TimeWindow) -> Iterator[tuple[float, str]]:
    """Yield the OOM kills of a pool, oldest first."""
    for event in reversed(events):
        if event.kind == "oom_kill" and event.target == pool and window.start < event.unix <= window.end:
            killed = KILLED.match(event.text)
            name = killed["name"] if killed else None
            yield event.unix, f"OOM kill: {name}" if name else "OOM kill"


def rewind(snapshot: Snapshot, found: Mapping[str, PoolPast], past: HistoryInput, at: float) -> Snapshot:
    """Return the state at an earlier time: pools with the layers that the history keeps, and levels by use.

    Holders are those whose footprint the history keeps: the largest of that time.
    Raises ProblemError if the history has no pool of that time.
    """
    pools = tuple(_rewind_pool(pool, found[pool.id].last) for pool in snapshot.pools)
    if not any(isinstance(pool.used_bytes, int) for pool in pools):
        raise ProblemError(404, f"the history has nothing of {words.moment(at)}: /history shows what is kept.")
    shares = tuple(_rewind_share(share, past, at) for share in snapshot.shares)
    pressure = tuple(
        _rewind_pressure(one, pool, found[pool.id])
        for pool in pools
        for one in snapshot.pressure
        if one.target == pool.id and isinstance(pool.used_bytes, int) and pool.size_bytes
    )
    return replace(
        snapshot,
        unix=at,
        pools=pools,
        shares=shares,
        pressure=pressure,
        processes=tuple(find_past_processes(snapshot, past, at)),
        engines=(),
        leases=(),
        silences=(),
    )


def find_past_processes(snapshot: Snapshot, past: HistoryInput, at: float) -> Iterator[Process]:
    """Yield the processes with a recorded footprint at a time. GPU memory is placed where all processes hold it."""
    titles, then = past.history.titles(), at - past.to_wall
    held_in = {place for process in snapshot.processes for place in process.device_bytes}
    place = held_in.pop() if len(held_in) == 1 else None
    names = dict.fromkeys(past.history.names())
    for name in names:
        parsed = parse_name(name)
        if parsed is None or parsed[0] != "process" or parsed[2] not in FOOTPRINTS:
            continue
        size = _find_reading(past.history, name, then)
        if size is None:
            continue
        devices = f"process.{parsed[1]}.device_bytes"
        held = _find_reading(past.history, devices, then) if devices in names else 0.0
        pid, _, start = parsed[1].partition("-")
        resident: Bytes = Absent.NOT_AVAILABLE
        if held is not None and (place is not None or not held):
            resident = round(max(0.0, size - held))
        yield Process(
            pid=int(pid),
            start_time=float(start),
            name=titles.get(f"process.{parsed[1]}", Absent.NOT_AVAILABLE),
            rss_bytes=resident,
            footprint_bytes=round(size),
            footprint_basis="",
            device_bytes={place: round(held)} if place is not None and held else {},
        )


def _find_reading(history: AllSeries, name: str, boottime: float, later_seconds: float = 0.0) -> float | None:
    """Return the last reading within HOLDER_SECONDS before a time, else the first one after it, or None."""
    try:
        buckets = history.query(name, boottime - HOLDER_SECONDS, boottime, HOLDER_POINTS)
        later = history.query(name, boottime, boottime + later_seconds, HOLDER_POINTS) if later_seconds else []
    except KeyError:
        return None
    return next((one.average for one in (*reversed(buckets), *later) if one.average is not None), None)


def _rewind_pool(pool: Pool, layers: Sequence[float]) -> Pool:
    if not layers:
        nothing = Absent.NOT_AVAILABLE
        return replace(pool, used_bytes=nothing, available_bytes=nothing, free_bytes=nothing, contents=())
    *held, cache = (round(size) for size in layers)
    used = min(sum(held), pool.size_bytes)
    cache = min(cache, pool.size_bytes - used)
    kinds = ("devices", "used", "unattributed") if len(held) == 3 else ("used", "unattributed")
    sizes = [min(size, used) for size in held]
    sizes[-2] += used - sum(sizes)
    parts = (*zip(kinds, sizes, strict=True), ("page_cache", cache), ("free", pool.size_bytes - used - cache))
    return replace(
        pool,
        used_bytes=used,
        available_bytes=pool.size_bytes - used,
        free_bytes=pool.size_bytes - used - cache,
        unattributed_bytes=Absent.NOT_AVAILABLE,
        reserved_bytes=Absent.NOT_AVAILABLE,
        overlap=False,
        contents=tuple(Content(kind, size) for kind, size in parts if size),
    )


def _rewind_share(share: Share, past: HistoryInput, at: float) -> Share:
    used = value_at(past.history.machine, f"share.{share.id}.used_bytes", at - past.to_wall - MIN_HISTORY_SECONDS)
    return replace(share, used_bytes=Absent.NOT_AVAILABLE if used is None else round(used))


def _rewind_pressure(now: Pressure, pool: Pool, found: PoolPast) -> Pressure:
    ratio = pool.used_bytes / pool.size_bytes if isinstance(pool.used_bytes, int) else 0.0
    level = next((Level(int(one.maximum)) for one in reversed(found.levels) if one.maximum is not None), Level.LOW)
    return Pressure(now.target, level, level, ratio, kind=now.kind)


def choose_live_window(past: HistoryInput, wanted: Range, now: float) -> TimeWindow:
    """Return a range before now in POINTS steps that stay where they are until the next step has ended."""
    grain = wanted.seconds / POINTS
    end = now // grain * grain
    row = row_seconds(wanted.seconds, past.tiers)
    return TimeWindow(wanted, max(0.0, end - wanted.seconds - grain), end, POINTS + 1, True, max(grain, row))


class Growth(Struct, frozen=True):
    """The process that grows in a pool: from `base_bytes` on, by `sizes` in bytes at Unix times, oldest first."""

    growing: Growing
    base_bytes: int
    sizes: tuple[tuple[float, int], ...]

    @property
    def begin(self) -> tuple[int, int]:
        """Return the process and its size when it began to grow."""
        return self.growing.pid, self.base_bytes

    def grown_at(self, unix: float) -> float:
        """Return the bytes by which it had grown at a time, between two readings in proportion.

        The last reading may be older than the picture: what had grown by then has not gone.
        """
        if unix >= self.sizes[-1][0]:
            return float(self.sizes[-1][1] - self.base_bytes)
        for (start, before), (end, after) in pairwise(self.sizes):
            if start <= unix <= end and end > start:
                return before + (after - before) * (unix - start) / (end - start) - self.base_bytes
        return 0.0


class DrawnPast(Struct, frozen=True):
    """A past as it was drawn for a snapshot, with the level and the growth of its pool."""

    past: Past
    level: Level | None
    growth: Growth | None = None

    def serves(
        self,
        pool: Pool,
        level: Level | None,
        new: Past,
        now: float,
        grain_seconds: float,
        growth: Growth | None = None,
    ) -> bool:
        """Check that it may stand beside the pool of now: less than a step old, with the same level and height.

        `new`: the past of now. A forecast or growth that has ended is no longer shown, and growth begins where the
        tower has its begin.
        """
        if (self.growth and self.growth.begin) != (growth and growth.begin):
            return False
        kinds, new_kinds = ([layer.kind for layer in one.layers] for one in (self.past, new))
        if kinds != new_kinds or (self.past.full_at is None) != (new.full_at is None):
            return False
        sizes = [layer.sizes[-1] for layer in self.past.layers[:-1]]
        if level is not self.level or None in sizes or isinstance(pool.used_bytes, Absent):
            return False
        is_near = abs(sum(size or 0.0 for size in sizes) - pool.used_bytes) <= NEAR_RATIO * pool.size_bytes
        return is_near and 0 <= now - self.past.end < grain_seconds


def find_growths(snapshot: Snapshot, tracker: GrowthTracker, grown: Sequence[ProcessGrowth]) -> dict[str, Growth]:
    """Return the fastest growing process of each pool above OK. `grown`: growth of the last half minute."""
    found = {}
    levels = {one.target: one.level for one in snapshot.pressure}
    for pool in snapshot.pools:
        level = levels.get(pool.id, Level.LOW)
        if level is Level.LOW:
            continue
        grower = find_grower(grown, pool, snapshot)
        if grower is None:
            continue
        process, to_wall = grower.process, snapshot.unix - snapshot.monotonic
        readings = [(time + to_wall, size) for time, size in tracker.past(process)]
        sizes = find_run(_add_reading(readings, snapshot, process))
        if sizes:
            by = sizes[-1][1] - sizes[0][1]
            seconds, kind = sizes[-1][0] - sizes[0][0], _find_kind(process, pool, snapshot)
            growing = Growing(pool.id, process.pid, level.word, by, seconds, kind, process.title)
            found[pool.id] = Growth(growing, sizes[0][1], tuple(sizes))
    return found


def find_grower(grown: Iterable[ProcessGrowth], pool: Pool, snapshot: Snapshot) -> Grower | None:
    """Return the fastest growing process of those that grow in a pool."""
    mine = [one for one in grown if _find_kind(one.process, pool, snapshot)]
    return next(iter(rank_growers(mine, snapshot)), None)


def _find_kind(process: Process, pool: Pool, snapshot: Snapshot) -> str:
    """Return the kind of bytes by which a process grows in a pool, or nothing if it grows elsewhere."""
    inside = {share.id for share in snapshot.shares if find_pool(share.id, snapshot) == pool.id}
    held = sum(
        size
        for place, size in process.device_bytes.items()
        if isinstance(size, int) and place in (pool.id, *inside)
    )
    other = sum(size for size in process.device_bytes.values() if isinstance(size, int)) - held
    resident = process.rss_bytes if isinstance(process.rss_bytes, int) else 0
    if pool.kind in GPU_MEMORY:
        return "devices" if held and held >= resident else ""
    if held > resident:
        return "devices"
    return "anonymous" if resident and resident >= other else ""


def place_growths(
    growths: Mapping[str, Growth], snapshot: Snapshot, past: HistoryInput | None
) -> dict[str, Growth]:
    """Return the growth of processes in the families that rose by it. That which none took is left out.

    A process has a place in a pool whose contents are known, and where drivers list what it holds. macOS reports
    neither: its footprint may be memory of the GPU.
    """
    placed = {}
    for pool in snapshot.pools:
        if (growth := growths.get(pool.id)) is None:
            continue
        if not pool.contents and pool.kind not in GPU_MEMORY:
            rises = {} if past is None else _measure_rises(pool, snapshot, past, growth.sizes[0][0])
            kind, rise = max(rises.items(), key=lambda each: each[1], default=("", 0.0))
            if rise < MIN_RISE_RATIO * growth.growing.grown_bytes:
                continue
            growth = replace(growth, growing=replace(growth.growing, kind=kind))
        placed[pool.id] = growth
    return placed


def _measure_rises(pool: Pool, snapshot: Snapshot, past: HistoryInput, since: float) -> dict[str, float]:
    """Return the bytes by which the memory of devices and that of processes have risen, by kind of layer."""
    names = find_sources(pool, snapshot.shares).names
    used, available, free, rest, *held = (
        _find_reading(past.history, name, since - past.to_wall, HOLDER_SECONDS) for name in names
    )
    then, now = split(pool, used, available, free, rest, held), split_now(pool, snapshot)
    rises = {}
    for layer in list_past_layers(pool, snapshot.shares, [then, now]):
        before, after = layer.sizes
        if layer.kind in ("devices", "anonymous") and before is not None and after is not None:
            rises[layer.kind] = after - before
    return rises


def _add_reading(
    readings: list[tuple[float, int]], snapshot: Snapshot, process: Process
) -> list[tuple[float, int]]:
    now = next((one for one in snapshot.processes if one.pid == process.pid), process).footprint_low_bytes
    if isinstance(now, Absent) or (readings and snapshot.unix - readings[-1][0] < 1.0):
        return readings
    return [*readings, (snapshot.unix, now)]


def find_run(readings: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the newest readings through which a process grows without a pause, oldest first."""
    rates = [(b - a) / (to - start) for (start, a), (to, b) in pairwise(readings) if to > start]
    if not rates or rates[-1] <= 0:
        rates = rates[:-1]
        readings = readings[:-1]
    latest, number = max(rates[-2:], default=0.0), len(rates)
    if latest <= 0:  # any earlier growth would be more than a part of that
        return []
    while number > 0 and rates[number - 1] >= MIN_STEP_RATIO * latest:
        number -= 1
    return list(readings[number:]) if number < len(readings) - 1 else []


def build_live_pasts(
    snapshot: Snapshot,
    found: Mapping[str, PoolPast],
    window: TimeWindow,
    events: Sequence[Event],
    growths: Mapping[str, Growth],
    incidents: Sequence[Incident] = (),
) -> dict[str, Past]:
    """Return the past of each pool up to this very snapshot, with the bytes that grow as a layer."""
    until = replace(window, end=snapshot.unix)
    pasts = build_pasts(snapshot, found, until, events, snapshot.unix)
    levels = {one.target: one.level for one in snapshot.pressure}
    return {
        pool.id: _link_flags(
            _split_growth(
                _extend(pasts[pool.id], pool, snapshot, window, levels.get(pool.id, Level.LOW)),
                growths.get(pool.id),
                pool,
            ),
            incidents,
        )
        for pool in snapshot.pools
    }


def _extend(past: Past, pool: Pool, snapshot: Snapshot, window: TimeWindow, level: Level) -> Past:
    now = split_now(pool, snapshot)
    half = window.grain_seconds / 2
    end, known = snapshot.unix, past.start > window.start
    start = past.start if known else end - window.range.seconds
    levels = [one for one in past.levels if one[0] < window.end]
    if level is not Level.LOW:
        began = min(window.end, end)
        if levels and levels[-1][2] == level.word and levels[-1][1] >= window.end - window.grain_seconds:
            began = levels.pop()[0]
        levels.append((began, end, level.word))
    return replace(
        past,
        times=(*(time + half for time in past.times), end),
        start=min(start, end - 1.0),
        layers=tuple(
            replace(layer, sizes=(*layer.sizes, size)) for layer, size in zip(past.layers, now, strict=True)
        ),
        levels=tuple(levels),
    )


def _split_growth(past: Past, growth: Growth | None, pool: Pool) -> Past:
    """Draw the bytes that grow as a layer above those of their kind, in the colour of the level.

    A layer may have other kinds as well, which the tower draws above them: as many bytes as these have now.
    """
    if growth is None or growth.growing.kind not in (layer.kind for layer in past.layers):
        return past
    layers, above = [], _measure_above(pool, growth.growing.kind)
    for layer in past.layers:
        if layer.kind != growth.growing.kind:
            layers.append(layer)
            continue
        grown = _place_on_base(past.times, layer.sizes, growth)
        rest = [None if size is None else size - (by or 0.0) for size, by in zip(layer.sizes, grown, strict=True)]
        upper = [None if size is None else min(above, size) for size in rest]
        lower = [None if size is None else size - min(above, size) for size in rest]
        layers += [
            replace(layer, sizes=tuple(lower)),
            Layer(f"level-{growth.growing.level}", tuple(grown)),
            *([Layer(layer.kind, tuple(upper))] if above else []),
        ]
    return replace(past, layers=tuple(layers))


def _place_on_base(times: Sequence[float], sizes: Sequence[float | None], growth: Growth) -> list[float | None]:
    """Return the bytes that have grown at each time, on a level base as long as the others of the layer hold still.

    Between two readings of the process the begin of its growth is not known: the base would dip below it. The last
    size is that of now, which the tower has as well.
    """
    start = growth.sizes[0][0]
    known = [(time, size) for time, size in zip(times, sizes, strict=True) if size is not None]
    base = next((size for time, size in reversed(known) if time <= start), None)
    slack = MAX_BEGIN_RATIO * max(after - before for (_, before), (_, after) in pairwise(growth.sizes))
    grown: list[float | None] = []
    for number, (time, size) in enumerate(zip(times, sizes, strict=True)):
        by = growth.grown_at(time)
        if base is not None and size is not None and start < time and number < len(times) - 1:
            by = size - base if abs(size - by - base) <= slack else by
        grown.append(None if size is None else max(0.0, min(size, by)))
    return grown


def _measure_above(pool: Pool, kind: str) -> int:
    """Return the bytes of a layer above those of a kind in it, in the order of the tower."""
    parts = build_parts(pool)
    first = next((number for number, part in enumerate(parts) if part.kind in (kind, "used")), len(parts))
    if kind == "devices" and pool.kind not in GPU_MEMORY:  # alone in its layer
        return 0
    return sum(
        part.size_bytes for part in parts[first + 1 :] if part.kind not in AVAILABLE and part.kind != "unattributed"
    )


def _link_flags(past: Past, incidents: Sequence[Incident]) -> Past:
    """Lead each flag to the incident at its time, else to the history of that moment."""

    def find(unix: float) -> str:
        for one in incidents:
            if one.began - 5.0 <= unix <= (one.ended or past.end) + 5.0:
                return f"incidents/{one.id}"
        return f"history?from={words.timestamp(unix - 60)}&to={words.timestamp(unix + 60)}"

    return replace(past, flag_links=tuple(find(unix) for unix, _ in past.flags))


def find_ghosts(snapshot: Snapshot, events: Iterable[Event]) -> tuple[Ghost, ...]:
    """Return the processes that were killed within GHOST_SECONDS in a pool, the latest last."""
    kills = () if isinstance(snapshot.kernel_log, Absent) else snapshot.kernel_log.kills
    held = {kill.text: kill for kill in kills}
    pools = [pool.id for pool in snapshot.pools]
    return tuple(
        Ghost(event.target, killed["name"], kill.anonymous_bytes, kill.pid, event.unix)
        for event in reversed(list(events))
        if event.kind == "oom_kill" and snapshot.unix - event.unix <= GHOST_SECONDS
        if event.target in pools and (killed := KILLED.match(event.text)) and killed["name"]
        if (kill := held.get(event.text)) and isinstance(kill.anonymous_bytes, int)
    )
