"""The past: snapshots that were received, compressed, and figures of the daemon's history. No I/O."""

from __future__ import annotations

import pickle
import time
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import nan

from msgspec.structs import replace

from memwatch.cli.terminal.figures import Trend
from memwatch.core.events import Event
from memwatch.core.model import (
    COUNTED_AS_DEVICES,
    Absent,
    Bytes,
    Content,
    Device,
    Pool,
    PoolKind,
    Process,
    Share,
    Vitals,
    known_or,
)
from memwatch.core.snapshot import Level, MemoryPsi, Pressure, PsiLine, Snapshot
from memwatch.core.wire import Json
from memwatch.reporting.history.notable_ticks import Holder
from memwatch.reporting.render.json import WIRE
from memwatch.reporting.render.past import Past, find_sources, list_past_layers, split
from memwatch.reporting.render.summary import by_footprint

# Ten minutes at 1 Hz. A compressed snapshot of a machine with 8 GPUs has 4 kB.
MAX_KEPT = 600
# Processes whose footprints are kept over time: 600 KiB in all.
MAX_SIZES = 64
RECENT_SECONDS = 600.0
# Processes of a tick are shown with moments that are at most this far from it.
NEAR_SECONDS = 300.0
UNKNOWN = Absent.NOT_AVAILABLE
NO_PROCESSES = "Processes at this time are not in the history."


class Recent:
    """The last snapshots, compressed, and trends that grow with each of them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, bytes]] = deque(maxlen=MAX_KEPT)
        self._trends: dict[str, tuple[deque[float], deque[float | None], deque[float | None]]] = {}
        self._sizes: dict[int, tuple[float, array[float], array[float]]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Append a snapshot, unless there was no tick since the last one."""
        unix = snapshot.unix
        if self._kept and unix <= self._kept[-1][0]:
            return
        self._kept.append((unix, zlib.compress(pickle.dumps(snapshot, pickle.HIGHEST_PROTOCOL), 1)))
        self._add_sizes(snapshot)
        for name, value in figures_of(snapshot).items():
            times, values, lows = self._series(name)
            if not times or unix > times[-1]:
                times.append(unix)
                values.append(value)
                lows.append(value)
                while unix - times[0] > RECENT_SECONDS + 60:
                    times.popleft()
                    values.popleft()
                    lows.popleft()

    def _add_sizes(self, snapshot: Snapshot) -> None:
        """Add the footprints of the largest processes. A process that is not among them keeps no past."""
        before, self._sizes = self._sizes, {}
        for one in by_footprint(snapshot.processes)[:MAX_SIZES]:
            size = one.footprint_low_bytes
            if isinstance(size, Absent):
                continue
            started = known_or(one.start_time, 0.0)
            kept = before.get(one.pid)
            times, values = kept[1:] if kept and kept[0] == started else (array("d"), array("d"))
            times.append(snapshot.unix)
            values.append(size)
            if len(times) > MAX_KEPT:
                del times[0], values[0]
            self._sizes[one.pid] = started, times, values

    def sizes(self, pid: int) -> dict[int, Trend]:
        """Return the footprints of a process over time by its PID. Empty if it has none."""
        kept = self._sizes.get(pid)
        return {pid: Trend(tuple(kept[1]), tuple(kept[2]))} if kept else {}

    def prepend(self, history: Mapping[str, Trend]) -> None:
        """Add the daemon's history before the first snapshot that was received."""
        for name, trend in history.items():
            times, values, lows = self._series(name)
            rows = zip(trend.unix, trend.values, trend.lows or trend.values, strict=True)
            older = [row for row in rows if not times or row[0] < times[0]]
            times.extendleft(unix for unix, _, _ in reversed(older))
            values.extendleft(value for _, value, _ in reversed(older))
            lows.extendleft(low for _, _, low in reversed(older))

    def _series(self, name: str) -> tuple[deque[float], deque[float | None], deque[float | None]]:
        return self._trends.setdefault(name, (deque(), deque(), deque()))

    def trends(self) -> dict[str, Trend]:
        columns = self._trends.items()
        return {name: Trend(tuple(times), tuple(values), tuple(lows)) for name, (times, values, lows) in columns}

    @property
    def oldest(self) -> float:
        """Return the time of the oldest figure, received or of the daemon's history."""
        firsts = [times[0] for times, _, _ in self._trends.values() if times]
        return min(firsts, default=0.0)

    def snapshot_at(self, unix: float) -> Snapshot | None:
        """Return the last snapshot up to a time, None if it was before the first."""
        place = bisect_right([when for when, _ in self._kept], unix) - 1
        if place < 0:
            return None
        found: Snapshot = pickle.loads(zlib.decompress(self._kept[place][1]))  # noqa: S301  of this process
        return found


def figures_of(snapshot: Snapshot) -> dict[str, float | None]:
    """Return the values of a snapshot by the names of their series in the history."""
    found: dict[str, Bytes | float] = {}
    for pool in snapshot.pools:
        found[f"pool.{pool.id}.used_bytes"] = pool.used_bytes
        found[f"pool.{pool.id}.available_bytes"] = pool.available_bytes
        found[f"pool.{pool.id}.free_bytes"] = pool.free_bytes
        found[f"pool.{pool.id}.unattributed_bytes"] = pool.unattributed_bytes
    for share in snapshot.shares:
        found[f"share.{share.id}.used_bytes"] = share.used_bytes
    for one in snapshot.pressure:
        found[f"pressure.{one.target}.level"] = int(one.level)
    if not isinstance(snapshot.psi, Absent):
        found["psi.some.ratio_10s"] = snapshot.psi.some.ratio_10s
    if not isinstance(snapshot.swap, Absent):
        found["swap.used_bytes"] = snapshot.swap.used_bytes
    return {name: known_or(value, None) for name, value in found.items()}


def decode_history(answer: Json) -> dict[str, Trend]:
    """Return the series of a response to /api/v1/history, each with its extremes."""
    found = answer["series"]
    return {one["name"]: Trend(tuple(one["unix"]), tuple(one["max"]), tuple(one["min"])) for one in found}


def nearest_tick(ticks: Sequence[Json], unix: float) -> Json | None:
    """Return the notable tick that is nearest to a time, None if none is near."""
    near = [one for one in ticks if abs(one["unix"] - unix) <= NEAR_SECONDS]
    return min(near, key=lambda one: abs(one["unix"] - unix), default=None)


def note_of(tick: Json | None) -> str:
    """Return the time of the processes that are shown with a past moment."""
    if tick is None:
        return NO_PROCESSES
    clock = time.strftime("%H:%M:%S", time.localtime(tick["unix"]))
    return f"Processes are those of {clock}, the nearest in the history."


def past_snapshot(
    latest: Snapshot, trends: Mapping[str, Trend], unix: float, tolerance: float, tick: Json | None = None
) -> Snapshot:
    """Return the latest snapshot with the figures of an earlier time, and without what is not in the history.

    The processes are those of `tick`, with the figures that it has.
    """

    def value(name: str) -> Bytes:
        found = trends[name].at(unix, tolerance) if name in trends else None
        return UNKNOWN if found is None else round(found)

    shares = tuple(replace(share, used_bytes=value(f"share.{share.id}.used_bytes")) for share in latest.shares)
    pools = tuple(_past_pool(pool, value(f"pool.{pool.id}.used_bytes"), shares) for pool in latest.pools)
    before = {pool.id: pool for pool in latest.pools}
    levels = [(one, value(f"pressure.{one.target}.level")) for one in latest.pressure]
    places = {pool.id: pool for pool in pools}
    stall = trends.get("psi.some.ratio_10s", Trend()).at(unix, tolerance)
    swap, swapped = latest.swap, value("swap.used_bytes")
    if not isinstance(swap, Absent):
        swap = UNKNOWN if isinstance(swapped, Absent) else replace(swap, used_bytes=swapped)
    return replace(
        latest,
        unix=unix,
        pools=pools,
        shares=shares,
        pressure=tuple(
            _past_pressure(one, level, places.get(one.target), before.get(one.target))
            for one, level in levels
            if not isinstance(level, Absent)
        ),
        psi=UNKNOWN if stall is None else MemoryPsi(PsiLine(stall, nan, nan, nan), UNKNOWN),
        swap=swap,
        devices=tuple(map(_past_device, latest.devices)),
        processes=tuple(map(_past_process, tick["processes"])) if tick else (),
        claims=(),
        silences=(),
    )


def _past_process(found: Json) -> Process:
    one: Holder = WIRE.decode(Holder, found)
    return Process(
        pid=one.pid,
        start_time=UNKNOWN,
        name=one.name,
        rss_bytes=one.rss_bytes,
        footprint_bytes=one.footprint_bytes,
        footprint_basis="",
        user=one.user,
        unit=one.unit,
        container=one.container,
        device_bytes=one.device_bytes,
    )


def _past_pool(pool: Pool, used: Bytes, shares: Sequence[Share]) -> Pool:
    known = UNKNOWN if isinstance(used, Absent) else min(used, pool.size_bytes)
    available = UNKNOWN if isinstance(known, Absent) else pool.size_bytes - known
    contents: tuple[Content, ...] = ()
    if not isinstance(known, Absent) and not isinstance(available, Absent) and pool.kind is PoolKind.SYSTEM_RAM:
        inside = [one.used_bytes for one in shares if one.within == pool.id and one.kind in COUNTED_AS_DEVICES]
        held = min(known, sum(one for one in inside if isinstance(one, int)))
        contents = Content("devices", held), Content("used", known - held), Content("available", available)
    return replace(
        pool,
        used_bytes=known,
        available_bytes=available,
        unattributed_bytes=UNKNOWN,
        reserved_bytes=UNKNOWN,
        contents=contents,
    )


def _past_pressure(pressure: Pressure, level: int, pool: Pool | None, latest: Pool | None) -> Pressure:
    counted, ratio = pressure.available_bytes, 0.0
    if pool is not None and not isinstance(pool.used_bytes, Absent):
        ratio = pool.used_bytes / pool.size_bytes
    now = latest.available_bytes if latest is not None else UNKNOWN
    left = pool.available_bytes if pool is not None else UNKNOWN
    if not isinstance(left, Absent) and not isinstance(counted, Absent) and not isinstance(now, Absent):
        counted = left - (now - counted)  # a budget is judged by its own rest
    word = Level(max(0, min(3, level)))
    return replace(
        pressure,
        level=word,
        base_level=word,
        ratio=ratio,
        reasons=(),
        available_bytes=counted,
        seconds_to_full=UNKNOWN,
        clears_in_seconds=UNKNOWN,
        clears_to=UNKNOWN,
    )


def _past_device(device: Device) -> Device:
    gone = dict.fromkeys(("headroom_after_reclaim_bytes", "headroom_bytes", "busy_ratio"), UNKNOWN)
    return replace(device.with_vitals(Vitals.absent(UNKNOWN)), api_free_bytes={}, **gone)


def build_past(
    pool: Pool,
    snapshot: Snapshot,
    trends: Mapping[str, Trend],
    span: tuple[float, float],
    events: Sequence[Event],
    full_at: float | None,
    parts: int,
) -> Past | None:
    """Return the past of a pool in the words of the landscape, None without any. `span`: from and to, Unix seconds.

    Of each of `parts` equal parts of that time it has the moment at which most is used.
    """
    start, end = span
    sources = find_sources(pool, snapshot.shares)
    used = trends.get(sources.used, Trend())
    times = tuple(_choose_times(used, start, end, parts))
    if not times:
        return None
    available, free, rest, *devices = (
        trends.get(name, Trend())
        for name in (sources.available, sources.free, sources.unattributed, *sources.devices)
    )
    columns = [
        split(
            pool,
            used.at(unix, 0.0),
            available.at(unix, 0.0),
            free.at(unix, 0.0),
            rest.at(unix, 0.0),
            [one.at(unix, 0.0) for one in devices],
        )
        for unix in times
    ]
    return Past(
        times,
        start,
        end,
        list_past_layers(pool, snapshot.shares, columns),
        tuple(_list_levels(trends.get(f"pressure.{pool.id}.level", Trend()), start, end, parts)),
        full_at,
        tuple(
            (one.unix, "OOM kill")
            for one in reversed(events)
            if one.kind == "oom_kill" and one.target == pool.id and start < one.unix <= end
        ),
    )


def _choose_times(used: Trend, start: float, end: float, parts: int) -> Iterator[float]:
    """Yield for each part of a span the time at which most was used, also of those without figures."""
    for first, last in used.parts(start, end, parts):
        values = used.values[first:last]
        if values:
            most = max((one for one in values if one is not None), default=None)
            yield used.unix[first + values.index(most)]


def _list_levels(levels: Trend, start: float, end: float, parts: int) -> Iterator[tuple[float, float, str]]:
    """Yield from, to and word of each level above OK."""
    length, at = (end - start) / parts, 0
    for value, run in groupby(levels.columns(start, end, parts)):
        count = len(list(run))
        if value:
            yield start + length * at, start + length * (at + count), Level(int(min(3, value))).word
        at += count
