"""Holders of one pool over time: from snapshots, or from the ticks of an earlier run. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core.model import (
    HELD_BY_DEVICES,
    RAM,
    Absent,
    Bytes,
    Pool,
    PoolKind,
    Process,
    Share,
    ShareKind,
    find_inside,
    known_or,
)
from memwatch.core.snapshot import CgroupPressure, Kernel, MemoryPsi, Pressure, Snapshot, Swap
from memwatch.reporting.history.notable_ticks import Tick


class HolderKey(NamedTuple):
    """Identity of a process. `start_time` is 0 if it is not known."""

    pid: int
    start_time: float


class Holding(NamedTuple):
    """Memory of the target that a process held. `started`: Unix time, None if not known.

    `on_gpu`: most of it is memory of a GPU.
    """

    name: str
    unit: str | None
    container: str | None
    size: int
    started: float | None
    pod: str | None = None
    on_gpu: bool = False
    job: str | None = None
    user: str | None = None


Holdings = Mapping[HolderKey, Holding]


class Reading(Struct, frozen=True):
    """The target at one time. `parts`: bytes by use, such as `page_cache`, that explain a change.

    `shares`: bytes of devices by label, where nothing else is known of the target's use.
    `level`: word of its level, None without one. `stall_ratio`: part of the last 10 s that some tasks stalled, None
    if that is not known.
    """

    boottime: float
    unix: float
    used: int
    available: int
    holders: Holdings
    parts: Mapping[str, int] = field(default_factory=dict)
    level: str | None = None
    stall_ratio: float | None = None
    shares: Mapping[str, int] = field(default_factory=dict)


class Frame(Struct, frozen=True):
    """The parts of a snapshot that explain an incident later. They are shared with the snapshot, not copied."""

    boottime: float
    unix: float
    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]
    processes: tuple[Process, ...]
    pressure: tuple[Pressure, ...]
    swap: Swap | Absent
    psi: MemoryPsi | Absent
    kernel: Kernel
    cgroup_pressure: CgroupPressure | Absent


def build_frame(boottime: float, snapshot: Snapshot) -> Frame:
    return Frame(
        boottime,
        snapshot.unix,
        snapshot.pools,
        snapshot.shares,
        snapshot.processes,
        snapshot.pressure,
        snapshot.swap,
        snapshot.psi,
        snapshot.kernel,
        snapshot.cgroup_pressure,
    )


class FrameReader:
    """Reads frames for one target. The holders of a process list are computed once."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._holders: dict[int, tuple[tuple[Process, ...], Holdings]] = {}

    def read(self, frame: Frame) -> Reading | None:
        """Return the reading, None if the target's figures are absent."""
        found = _find_figures(frame, self._target)
        if found is None:
            return None
        level = next((one.level.word for one in frame.pressure if one.target == self._target), None)
        stalled = None if isinstance(frame.psi, Absent) else frame.psi.some.ratio_10s
        parts = read_parts(frame)
        shares = read_shares(frame, self._target)
        return Reading(frame.boottime, frame.unix, *found, self._read_holders(frame), parts, level, stalled, shares)

    def read_all(self, frames: Sequence[Frame]) -> list[Reading]:
        return [reading for frame in frames if (reading := self.read(frame)) is not None]

    def _read_holders(self, frame: Frame) -> Holdings:
        known = self._holders.get(id(frame.processes))
        if known is None:
            known = frame.processes, read_holders(frame.processes, find_places(frame, self._target))
            self._holders[id(frame.processes)] = known  # the tuple is kept, so its id is not reused
        return known[1]


class Places(NamedTuple):
    """The pools and shares whose bytes count, and if resident memory does."""

    names: frozenset[str]
    is_ram: bool


def find_places(frame: Frame | Snapshot, target: str) -> Places:
    kinds = {pool.id: pool.kind for pool in frame.pools} | {share.id: share.kind for share in frame.shares}
    return Places(
        frozenset(find_inside((target,), frame.shares)),
        kinds.get(target) in (PoolKind.SYSTEM_RAM, ShareKind.CGROUP),
    )


def read_holders(processes: Sequence[Process], places: Places) -> Holdings:
    found: dict[HolderKey, Holding] = {}
    for process in processes:
        size = size_in(process, places)
        if size is not None:
            found[key_of(process)] = Holding(
                process.title,
                word(process.unit),
                word(process.container),
                size,
                known_or(process.start_time, None),
                word(process.pod),
                2 * held_on_gpu(process, places) > size,
                word(process.job),
                word(process.user),
            )
    return found


def size_in(process: Process, places: Places) -> int | None:
    """Return the known memory of a process in these places, as a lower bound. None if nothing is known."""
    inside = [figure for name, figure in process.device_bytes.items() if name in places.names]
    held = held_on_gpu(process, places)
    if not places.is_ram:
        return held if inside else None
    if len(inside) == len(process.device_bytes) and isinstance(process.footprint_low_bytes, int):
        return process.footprint_low_bytes
    # Resident memory may contain memory of an integrated GPU, so the two are not added.
    rss = process.rss_bytes
    return max(held, known_or(rss, 0)) or None


def held_on_gpu(process: Process, places: Places) -> int:
    return sum(
        figure
        for name, figure in process.device_bytes.items()
        if name in places.names and not isinstance(figure, Absent)
    )


def read_device_memory(process: Process, frame: Frame) -> dict[str, int]:
    """Return the memory of a process in each pool other than System RAM."""
    pools = (
        [pool.id for pool in frame.pools if pool.kind is not PoolKind.SYSTEM_RAM] if process.device_bytes else ()
    )
    sizes = {pool: held_on_gpu(process, find_places(frame, pool)) for pool in pools}
    return {pool: size for pool, size in sizes.items() if size}


def key_of(process: Process) -> HolderKey:
    return HolderKey(process.pid, known_or(process.start_time, 0.0))


def word(text: str | Absent | None) -> str | None:
    return text if isinstance(text, str) else None


def _find_figures(frame: Frame, target: str) -> tuple[int, int] | None:
    """Return used and available bytes of the target."""
    for pool in frame.pools:
        if pool.id == target:
            return _known(pool.used_bytes, pool.available_bytes)
    for share in frame.shares:
        if share.id == target:
            used, limit = share.used_bytes, share.limit_bytes
            return None if isinstance(used, Absent) or isinstance(limit, Absent) else (used, max(0, limit - used))
    return None


def _known(used: Bytes, available: Bytes) -> tuple[int, int] | None:
    return None if isinstance(used, Absent) or isinstance(available, Absent) else (used, available)


def read_parts(frame: Frame) -> Mapping[str, int]:
    """Return System RAM by use, swap and locked memory."""
    parts: dict[str, int] = {}
    for pool in frame.pools:
        if pool.kind is PoolKind.SYSTEM_RAM:
            parts |= {part.kind: part.size_bytes for part in pool.contents}
            if not pool.contents and pool.reclaimable_bytes is not None:
                parts["page_cache"] = pool.reclaimable_bytes
            if isinstance(pool.unattributed_bytes, int):
                parts["unattributed"] = pool.unattributed_bytes
    if not isinstance(frame.swap, Absent):
        parts["swap"] = frame.swap.used_bytes
    if not isinstance(frame.kernel.mlocked_bytes, Absent):
        parts["mlocked"] = frame.kernel.mlocked_bytes
    return parts


def read_shares(frame: Frame, target: str) -> Mapping[str, int]:
    """Return the memory of devices in System RAM by label, if its use is not known by its contents."""
    pool = next((one for one in frame.pools if one.id == target), None)
    if pool is None or pool.kind is not PoolKind.SYSTEM_RAM or pool.contents:
        return {}
    inside = (one for one in frame.shares if one.within == target and one.kind in HELD_BY_DEVICES)
    return {one.label: one.used_bytes for one in inside if isinstance(one.used_bytes, int)}


def read_ticks(ticks: Sequence[Tick], target: str) -> list[Reading]:
    """Return the readings of a pool from ticks of an earlier run."""
    readings = []
    for tick in sorted(ticks, key=lambda one: one.boottime):
        pool = next((one for one in tick.pools if one.id == target), None)
        figures = None if pool is None else _known(pool.used_bytes, pool.available_bytes)
        if figures is not None:
            readings.append(Reading(tick.boottime, tick.unix, *figures, _tick_holders(tick, target)))
    return readings


def _tick_holders(tick: Tick, target: str) -> Holdings:
    found: dict[HolderKey, Holding] = {}
    others = {pool.id.partition(".")[0] for pool in tick.pools if pool.id != target}
    for one in tick.processes:
        # A tick has no shares: that of a MIG instance, such as gpu0.mig1, begins like the pool of its GPU.
        inside = [figure for name, figure in one.device_bytes.items() if name.partition(".")[0] not in others]
        on_gpu = sum(figure for figure in inside if not isinstance(figure, Absent))
        size = one.footprint_bytes if target == RAM else one.device_bytes.get(target)
        # The footprint contains memory of other pools.
        if target == RAM and (isinstance(size, Absent) or len(inside) < len(one.device_bytes)):
            size = one.rss_bytes
        if isinstance(size, int):
            key = HolderKey(one.pid, 0.0)
            unit, container = word(one.unit), word(one.container)
            found[key] = Holding(one.name, unit, container, size, None, on_gpu=2 * on_gpu > size)
    return found
