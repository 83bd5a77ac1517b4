"""Data of the overview: the largest holders, recent changes, and the grid of many GPUs. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from memwatch.core.model import Absent, Bytes, Device, Pool, PoolKind, Process
from memwatch.core.processes.growth import ProcessGrowth, key_of
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import MemoryMap
from memwatch.reporting.render.summary import by_footprint
from memwatch_monitor.history.tiers import History
from memwatch_web.pages.processes import GROWTH_SECONDS, sort_places, sum_devices

MAX_HOLDERS = 8
# The earlier value is an average over this time: a single sample may be a spike.
MIN_HISTORY_SECONDS = 10.0
MAX_CHANGES, MAX_SERIES = 6, 60
MIN_BYTES = 1 << 20
# Heights in pixels at 1280 × 800: of a map, its brackets, the line of a share, and all maps above the processes.
MAP_HEIGHT, BRACKETS_HEIGHT, ROW_HEIGHT, LEADING_HEIGHT = 212, 26, 26, 460


class BarPart(Struct, frozen=True):
    """Part of the bar of a row, as fractions of the largest footprint."""

    holder: str
    start: float
    width: float


class TopHolder(Struct, frozen=True):
    """A process. `places`: its GPU memory by place, largest first. `grown_bytes`: in the last ten minutes."""

    process: Process
    bar: tuple[BarPart, ...]
    places: tuple[tuple[str, Bytes], ...]
    device_bytes: Bytes | None
    grown_bytes: Bytes
    whole: bool


def find_top_holders(snapshot: Snapshot, grown: Iterable[ProcessGrowth]) -> tuple[TopHolder, ...]:
    """Return the largest processes, largest first."""
    largest = by_footprint(snapshot.processes)[:MAX_HOLDERS]
    growth = {key_of(one.process): one for one in grown}
    scale = max((_known(process.footprint_high_bytes) for process in largest), default=0)
    return tuple(_build_holder(process, growth.get(key_of(process)), scale) for process in largest)


def _build_holder(process: Process, grown: ProcessGrowth | None, scale: int) -> TopHolder:
    return TopHolder(
        process=process,
        bar=tuple(_build_bar(process, scale)),
        places=sort_places(process.device_bytes),
        device_bytes=sum_devices(process.device_bytes),
        grown_bytes=grown.grown_bytes if grown else Absent.NOT_AVAILABLE,
        whole=grown is not None and grown.whole,
    )


def _build_bar(process: Process, scale: int) -> Iterator[BarPart]:
    """Yield GPU memory, then the resident set. Where both may hold the same pages, the sum is the upper bound."""
    start = 0.0
    devices = sum(_known(figure) for figure in process.device_bytes.values() if isinstance(figure, int))
    for holder, held in (("gpu", devices), ("processes", max(0, _known(process.rss_bytes)))):
        width = min(1.0 - start, held / scale) if scale > 0 else 0.0
        if width > 0:
            yield BarPart(holder, start, width)
            start += width


def _known(figure: Bytes) -> int:
    return -1 if isinstance(figure, Absent) else figure


Before = Callable[[str], float | None]


class Change(Struct, frozen=True):
    """A change of one item. `pid` is set for processes."""

    label: str
    before_bytes: int
    after_bytes: int
    pid: int | None = None

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class Changes(Struct, frozen=True):
    """Changes, largest first. `seconds`: the covered time, shorter than the window after a start."""

    seconds: float
    changes: tuple[Change, ...]


def find_changes(snapshot: Snapshot, history: History | None, grown: Iterable[ProcessGrowth]) -> Changes | None:
    """Return the changes, or None without enough history."""
    if history is None or not len(history):
        return None
    then = max(history.end - GROWTH_SECONDS, history.start)
    if history.end - then < MIN_HISTORY_SECONDS:
        return None
    found = [*places(snapshot, lambda name: value_at(history, name, then)), *processes(grown)]
    large = [change for change in found if abs(change.grown_bytes) >= MIN_BYTES]
    large.sort(key=lambda change: (-abs(change.grown_bytes), change.label))
    return Changes(history.end - then, tuple(large[:MAX_CHANGES]))


def value_at(history: History, name: str, boottime: float) -> float | None:
    """Return the average over MIN_HISTORY_SECONDS from a time on, or None without data."""
    try:
        buckets = history.query(name, boottime, boottime + MIN_HISTORY_SECONDS, 1)
    except KeyError:
        return None
    return next((bucket.average for bucket in buckets if bucket.average is not None), None)


def places(snapshot: Snapshot, before: Before) -> Iterator[Change]:
    """Yield the changes of pools, page cache, shares and swap."""
    for pool in snapshot.pools[:MAX_SERIES]:
        yield from _change(pool.label, before(f"pool.{pool.id}.used_bytes"), pool.used_bytes)
        cache = [part.size_bytes for part in pool.contents if part.kind == "page_cache"]
        available, free = (before(f"pool.{pool.id}.{name}_bytes") for name in ("available", "free"))
        if cache and available is not None and free is not None:
            yield from _change(_cache_label(pool), max(0.0, available - free), cache[0])
    for share in snapshot.shares[:MAX_SERIES]:
        yield from _change(snapshot.relation(share), before(f"share.{share.id}.used_bytes"), share.used_bytes)
    if not isinstance(snapshot.swap, Absent):
        yield from _change("swap", before("swap.used_bytes"), snapshot.swap.used_bytes)


def _cache_label(pool: Pool) -> str:
    return "page cache" if pool.kind is PoolKind.SYSTEM_RAM else f"page cache in {pool.label}"


def processes(grown: Iterable[ProcessGrowth]) -> Iterator[Change]:
    for one in grown:
        yield Change(one.process.title, one.from_bytes, one.to_bytes, one.process.pid)


def _change(label: str, before: float | None, after: Bytes) -> Iterator[Change]:
    if before is not None and not isinstance(after, Absent):
        yield Change(label, round(before), after)


class GpuCell(Struct, frozen=True):
    """One GPU: its map, the worst level of it and its MIG instances, and what is left."""

    map: MemoryMap
    level: str
    note: str
    devices: tuple[Device, ...]


def arrange(maps: Sequence[MemoryMap]) -> tuple[tuple[MemoryMap, ...], tuple[MemoryMap, ...]]:
    """Return the maps above the processes, and those below: the first screen names the largest holder.

    GPUs come first and carve-outs last. A map at least is above, and as many as fit.
    """
    ordered = sorted(maps, key=_rank)
    heights = list(accumulate(_height(one) for one in ordered))
    fit = max(1, sum(height <= LEADING_HEIGHT for height in heights))
    return tuple(ordered[:fit]), tuple(ordered[fit:])


def _height(one: MemoryMap) -> int:
    bracketed = [bracket.share for bracket in one.brackets if bracket.share]
    listed = [row for row in one.rows if row.share not in bracketed or not isinstance(row.used, Absent)]
    return MAP_HEIGHT + BRACKETS_HEIGHT * bool(bracketed) + ROW_HEIGHT * len(listed)


def _rank(one: MemoryMap) -> int:
    if one.pool is None:
        return 1
    return {PoolKind.VRAM: 0, PoolKind.HBM: 0, PoolKind.SYSTEM_RAM: 1, PoolKind.CARVEOUT: 2}[one.pool.kind]


def build_cells(
    maps: Iterable[MemoryMap], pressure: Mapping[str, Pressure], devices: Sequence[Device]
) -> tuple[GpuCell, ...]:
    """Return the cells, critical and high ones first. All others keep their order, so that few of them move."""
    cells = [(_levels(one, pressure), _build_cell(one, pressure, devices)) for one in maps]
    cells.sort(key=lambda one: -max(Level.MEDIUM, *one[0], Level.MEDIUM))
    return tuple(cell for _, cell in cells)


def _levels(one: MemoryMap, pressure: Mapping[str, Pressure]) -> list[Level]:
    targets = (one.whole.id, *(piece.share.id for piece in one.slices))
    return [pressure[target].level for target in targets if target in pressure]


def _build_cell(one: MemoryMap, pressure: Mapping[str, Pressure], devices: Sequence[Device]) -> GpuCell:
    levels = _levels(one, pressure)
    places = {one.whole.id, *(piece.share.id for piece in one.slices)}
    mine = tuple(device for device in devices if places.intersection(device.allocates_from))
    return GpuCell(one, max(levels).word if levels else "unknown", _note(one, pressure), mine)


def _note(one: MemoryMap, pressure: Mapping[str, Pressure]) -> str:
    """Say what is left: "3 critical · largest free slice 8.6 GiB", or "13.2 GiB available"."""
    if not one.slices:
        return f"{words.size(one.whole.available_bytes)} available"
    left = [size for piece in one.slices if not isinstance(size := piece.share.left_bytes, Absent)]
    levels = [pressure[piece.share.id].level for piece in one.slices if piece.share.id in pressure]
    worst = max(levels, default=Level.LOW)
    alike = [f"{levels.count(worst)} {worst.word}"] if worst > Level.LOW else []
    return " · ".join([*alike, *([f"largest free slice {words.size(max(left))}"] if left else [])])


def advise_engines(snapshot: Snapshot) -> Mapping[str, str | None]:
    """Return the advice by engine. The planner is imported only if a server runs."""
    if not snapshot.engines:
        return {}
    from memwatch.planning.device_totals import advise

    return {engine.id: advise(engine, snapshot) for engine in snapshot.engines}
