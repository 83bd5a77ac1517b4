"""Data of the devices page, collected from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.unattributed import unattributed_bytes
from memwatch.core.engines.records import Engine
from memwatch.core.model import (
    HELD_BY_DEVICES,
    Absent,
    Bytes,
    Device,
    Pool,
    Process,
    Share,
    ShareKind,
    known_or,
    whole_of,
)
from memwatch.core.snapshot import LEVEL_WORDS, Pressure, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.engine_view import engines_in
from memwatch.reporting.render.memory_map import GPU_MEMORY

MAX_HOLDERS = 10
# Levels of a row, the worst last.
RANKS = ("unknown", *LEVEL_WORDS)


class DevicePlace(Struct, frozen=True):
    """A pool or share of a device, or one that it allocates from. For a share `size_bytes` is its limit.

    `depth` counts the shares around it. A cgroup's limit has a `level` of pressure, and a note.
    """

    label: str
    relation: str | None
    used_bytes: Bytes
    size_bytes: Bytes
    is_allocated_from: bool
    is_limit: bool = False
    depth: int = 0
    level: str | None = None
    note: str | None = None


class BarPart(Struct, frozen=True):
    """Bytes of a bar as fractions of it. `holder`: their colour; `name`: what they are, "" for the rest in use."""

    start: float
    width: float
    holder: str
    name: str = ""


class Cell(Struct, frozen=True):
    """A MIG instance in a bar: its place as fractions, and the used part of it, and of that the part that no listed
    process holds. `level`: "unknown" without one."""

    start: float
    width: float
    used: float | Absent
    level: str
    share: Share
    unattributed: float = 0.0

    @property
    def label(self) -> str:
        return short_label(self.share)


class DeviceBar(Struct, frozen=True):
    """A pool or a limit that a device allocates from. `width`: as a fraction of the largest bar of the page.

    `relations`: the shares in it with what they hold, such as "CUDA Pool ⊂ System RAM".
    """

    id: str
    label: str
    size_bytes: int
    used_bytes: Bytes
    level: str
    width: float
    parts: tuple[BarPart, ...] = ()
    cells: tuple[Cell, ...] = ()
    relations: tuple[tuple[str, Bytes], ...] = ()


class Holder(Struct, frozen=True):
    """A process and the memory it holds in all places of one device."""

    process: Process
    held_bytes: int


class DeviceError(Struct, frozen=True):
    """A kind of driver error with its count and the time of the last one, if known."""

    kind: str
    count: int
    seen_unix: float | None


class DeviceEntry(Struct, frozen=True):
    """One device with its places, its largest processes and its errors."""

    device: Device
    places: tuple[DevicePlace, ...]
    holders: tuple[Holder, ...]
    more_holders: int
    faults: tuple[DeviceError, ...]
    engines: tuple[Engine, ...] = ()
    bars: tuple[DeviceBar, ...] = ()
    level: str = "unknown"
    reason: str = ""
    reasons: str = ""

    @property
    def is_asleep(self) -> bool:
        """Return True if figures are missing because reading them would wake the device."""
        device = self.device
        figures = (device.temperature_celsius, device.power_watts, device.busy_ratio, device.headroom_bytes)
        return Absent.SUSPENDED in figures or any(bar.used_bytes is Absent.SUSPENDED for bar in self.bars)


def build_entries(snapshot: Snapshot) -> tuple[DeviceEntry, ...]:
    """Return the devices in their order, with bars at one scale."""
    entries = [_entry(snapshot, device) for device in snapshot.devices]
    largest = max((bar.size_bytes for entry in entries for bar in entry.bars), default=1)
    return tuple(
        replace(entry, bars=tuple(replace(bar, width=bar.size_bytes / largest) for bar in entry.bars))
        for entry in entries
    )


def _entry(snapshot: Snapshot, device: Device) -> DeviceEntry:
    ids = _find_place_ids(snapshot, device)
    holders = sorted(_holders(snapshot, ids), key=lambda one: (-one.held_bytes, one.process.pid))
    faults = tuple(
        DeviceError(kind, count, device.errors_seen_unix.get(kind)) for kind, count in sorted(device.errors.items())
    )
    shown = tuple(holders[:MAX_HOLDERS])
    engines = engines_in(snapshot.engines, ids)
    places = tuple(_places(snapshot, device, ids))
    bars = tuple(_bars(snapshot, device))
    levels = [bar.level for bar in bars] + [cell.level for bar in bars for cell in bar.cells]
    worst = max(levels, key=RANKS.index, default="unknown")
    reason, reasons = _explain(snapshot, bars, worst) if worst not in RANKS[:2] else ("", "")
    return DeviceEntry(
        device, places, shown, len(holders) - len(shown), faults, engines, bars, worst, reason, reasons
    )


def _explain(snapshot: Snapshot, bars: Iterable[DeviceBar], level: str) -> tuple[str, str]:
    """Return in a few words why a pool or a MIG instance is at a level, and all its reasons."""
    verdicts = {one.target: one for one in snapshot.pressure if one.level.word == level}
    for bar in bars:
        if bar.id in verdicts:
            found = verdicts[bar.id]
            return _first_reason(found), words.reasons(found)
        for cell in bar.cells:
            if cell.share.id in verdicts:
                found = verdicts[cell.share.id]
                name = short_label(cell.share)
                return f"{name} {_first_reason(found) or words.ratio(found.ratio)}", words.reasons(found)
    return "", ""


def _first_reason(verdict: Pressure) -> str:
    """Return the time left, when the level ends, or the first reason beside use, which the bar shows."""
    stated = words.stated(verdict)
    others = [one.text for one in stated if one.signal not in ("util", "ttf")]
    held = [words.way_out(one.text) for one in stated]
    return next(iter(filter(None, [words.full(verdict), words.recovery(verdict), *others, *held])), "")


def short_label(share: Share) -> str:
    """Return the label of a MIG instance in the row of its GPU: "MIG 2" of "GPU 7 · MIG 2"."""
    return share.label.rpartition(" · ")[2]


def _bars(snapshot: Snapshot, device: Device) -> Iterator[DeviceBar]:
    """Yield a bar for each pool that the device allocates from, or for its limit in no pool, the largest first."""
    levels = {verdict.target: verdict.level.word for verdict in snapshot.pressure}
    shares = {share.id: share for share in snapshot.shares}
    pools = {pool.id: pool for pool in snapshot.pools}
    roots = dict.fromkeys(_find_root(place, shares, pools) for place in device.allocates_from)
    wholes: list[Pool | Share] = [pools[root] if root in pools else shares[root] for root in roots]
    for whole in sorted(wholes, key=lambda one: -whole_of(one)):
        size = whole_of(whole)
        if not size:
            continue
        inside = [one for one in snapshot.shares if one.within == whole.id and one.device == device.id]
        cells = tuple(_cells(inside, size, levels, snapshot))
        held = [] if cells else [one for one in inside if one.kind in HELD_BY_DEVICES]
        yield DeviceBar(
            whole.id,
            whole.label,
            size,
            whole.used_bytes,
            levels.get(whole.id, "unknown"),
            1.0,
            () if cells else tuple(_parts(whole, size, held)),
            cells,
            tuple((snapshot.relation(one), one.used_bytes) for one in held),
        )


def _find_root(place: str, shares: Mapping[str, Share], pools: Mapping[str, Pool]) -> str:
    """Return the pool around a place, or the outermost share if that is in no pool."""
    while place not in pools and place in shares and (shares[place].within in {*shares, *pools}):
        place = shares[place].within
    return place


def _cells(inside: Iterable[Share], size: int, levels: Mapping[str, str], snapshot: Snapshot) -> Iterator[Cell]:
    start = 0.0
    for one in inside:
        if one.kind is not ShareKind.MIG_INSTANCE or not isinstance(one.limit_bytes, int) or not one.limit_bytes:
            continue
        width = min(one.limit_bytes / size, 1.0 - start)
        used = one.used_bytes
        part = used if isinstance(used, Absent) else min(used / one.limit_bytes, 1.0)
        rest = min(known_or(unattributed_bytes(one, snapshot), 0) / one.limit_bytes, known_or(part, 0.0))
        yield Cell(start, width, part, levels.get(one.id, "unknown"), one, rest)
        start += width


def _parts(whole: Pool | Share, size: int, held: Iterable[Share]) -> Iterator[BarPart]:
    """Yield what is used: shares of the device first, then the rest. Nothing if the use is not known.

    The rest of System RAM is that of processes and the kernel, without what is known to be unattributed.
    """
    if isinstance(whole.used_bytes, Absent):
        return
    start, end = 0.0, min(whole.used_bytes / size, 1.0)
    for one in held:
        width = min(one.used_bytes / size, end - start) if isinstance(one.used_bytes, int) else 0.0
        if width > 0:
            yield BarPart(start, width, "gpu", one.label)
            start += width
    is_own = not isinstance(whole, Pool) or whole.kind in GPU_MEMORY
    unknown = whole.unattributed_bytes if isinstance(whole, Pool) else 0
    known = max(0.0, end - start - (0.0 if isinstance(unknown, Absent) else unknown / size))
    if known > 0 and not is_own:
        yield BarPart(start, known, "processes")
        start += known
    if end > start:
        yield BarPart(start, end - start, "gpu" if is_own else "unattributed")


def _find_place_ids(snapshot: Snapshot, device: Device) -> set[str]:
    """Return the ids of the device's pool and shares, and of those it allocates from."""
    named = {share.id for share in snapshot.shares if share.device == device.id}
    own = {pool.id for pool in snapshot.pools if pool.id == device.id}
    return {*device.allocates_from, *named, *own}


def _places(snapshot: Snapshot, device: Device, ids: set[str]) -> list[DevicePlace]:
    pools = [
        DevicePlace(pool.label, None, pool.used_bytes, pool.size_bytes, pool.id in device.allocates_from)
        for pool in snapshot.pools
        if pool.id in ids
    ]
    return pools + list(_shares(snapshot, device, ids))


def _shares(snapshot: Snapshot, device: Device, ids: set[str]) -> Iterator[DevicePlace]:
    """Yield the shares, each followed by the shares inside it."""
    levels = {pressure.target: pressure.level.word for pressure in snapshot.pressure}
    mine = [share for share in snapshot.shares if share.id in ids]
    named = {share.id for share in mine}

    def walk(within: str | None, depth: int) -> Iterator[DevicePlace]:
        for share in mine:
            if share.within != within and (within is not None or share.within in named):
                continue
            limits = share.kind is ShareKind.GPU_LIMIT
            yield DevicePlace(
                share.label,
                snapshot.relation(share),
                share.used_bytes,
                share.limit_bytes,
                share.id in device.allocates_from,
                is_limit=limits,
                depth=depth,
                level=levels.get(share.id) if limits else None,
                note=share.note if limits else None,
            )
            yield from walk(share.id, depth + 1)

    yield from walk(None, 0)


def _holders(snapshot: Snapshot, ids: set[str]) -> list[Holder]:
    """Sum the device memory of each process. Places do not overlap."""
    found = []
    for process in snapshot.processes:
        sizes = (size for place, size in process.device_bytes.items() if place in ids)
        held = sum(size for size in sizes if not isinstance(size, Absent))
        if held:
            found.append(Holder(process, held))
    return found
