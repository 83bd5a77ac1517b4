"""Data of the devices page, collected from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Bytes, Device, Process, ShareKind
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.engine_view import engines_in

MAX_HOLDERS = 10


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


def build_entries(snapshot: Snapshot) -> tuple[DeviceEntry, ...]:
    return tuple(_entry(snapshot, device) for device in snapshot.devices)


def _entry(snapshot: Snapshot, device: Device) -> DeviceEntry:
    ids = _find_place_ids(snapshot, device)
    holders = sorted(_holders(snapshot, ids), key=lambda one: (-one.held_bytes, one.process.pid))
    faults = tuple(
        DeviceError(kind, count, device.errors_seen_unix.get(kind)) for kind, count in sorted(device.errors.items())
    )
    shown = tuple(holders[:MAX_HOLDERS])
    engines = engines_in(snapshot.engines, ids)
    places = tuple(_places(snapshot, device, ids))
    return DeviceEntry(device, places, shown, len(holders) - len(shown), faults, engines)


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
