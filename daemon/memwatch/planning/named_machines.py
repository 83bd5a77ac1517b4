"""Machines that a request names: `2x rtx4090 + 128GiB`, `gb10`, or a saved snapshot. Nothing else runs on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.backends.devices import compute_capacity
from memwatch.core.model import Absent, Architecture, Device, Pool, PoolKind, Quality, find_system_ram
from memwatch.core.snapshot import Machine, SelfUsage, Snapshot
from memwatch.core.snapshot_json import SnapshotDecodeError, snapshot_from
from memwatch.planning.model_file import read_small
from memwatch.planning.request import MAX_GPUS
from memwatch.planning.sizes import InvalidInputError, parse_bytes
from memwatch.planning.tables import read_table

NAMED = re.compile(r"(?:([0-9]{1,4}) ?x ?)?([^+]+?)(?: ?\+ ?([0-9][^+]*))?")
MAX_SNAPSHOT_BYTES = 16 << 20
# An idle Linux with a desktop and its services. Without a desktop it takes about 1 GiB.
IDLE_BYTES = 4 << 30


class Product(Struct, frozen=True):
    """A row of products.json. `names`: as drivers report them. `size_bytes`: the total that the driver reports, or
    MemTotal if `unified`. `bandwidth`: of its memory, bytes a second, by the public specification."""

    names: tuple[str, ...]
    vendor: str
    size_bytes: int
    bandwidth: int
    unified: bool = False


def find_bandwidth(name: str) -> int | None:
    """Return the memory's bandwidth of a GPU by its driver's name for it, None if it is not in the table."""
    rows = read_table("products", Product).values()
    return next((row.bandwidth for row in rows if name in row.names), None)


def read_machine(text: str) -> Snapshot:
    """Return the empty machine that `text` describes. Raises InvalidInputError."""
    if text.endswith(".json"):
        return without_load(_saved(Path(text)))
    match = NAMED.fullmatch(text.strip())
    rows = read_table("products", Product)
    word = re.sub(r"[ _]|nvidia|geforce", "", match[2].lower()) if match else ""
    if match is None or word not in rows:
        raise InvalidInputError(
            f"{text[:40]!r} is not a machine that is known; for example 2x rtx4090 + 128GiB, a saved "
            f"/api/v1/snapshot (machine.json), or one of {', '.join(rows)}"
        )
    count = int(match[1] or 1)
    if not 1 <= count <= MAX_GPUS:
        raise InvalidInputError(f"{text[:40]!r}: the number of GPUs is 1 to {MAX_GPUS}; for example 2x {word}")
    row, ram = rows[word], parse_bytes(match[3]) if match[3] else 0
    if row.unified and ram:
        raise InvalidInputError(f"{word} has one memory of {row.size_bytes >> 30} GiB; leave out + {match[3]}")
    return _build(text, row, count, ram)


def _build(text: str, row: Product, count: int, ram: int) -> Snapshot:
    """Return a machine. Several unified ones are nodes, each with its memory, of which its system takes part."""
    alone = row.unified and count == 1
    room = row.size_bytes - IDLE_BYTES * row.unified
    label = "System RAM" if alone or ram else "System RAM, of which none is named"
    pools = [_pool("ram", PoolKind.SYSTEM_RAM, label, row.size_bytes if alone else ram)]
    devices = []
    for at in range(count):
        place = "ram" if alone else f"gpu{at}"
        if not alone:
            pools.append(_pool(place, PoolKind.VRAM, f"memory of {place}", row.size_bytes))
        kind = Architecture.UNIFIED if row.unified else Architecture.DISCRETE
        devices.append(
            Device(
                f"gpu{at}", row.vendor, row.names[0], kind, allocates_from=(place,), headroom_bytes=room,
                headroom_after_reclaim_bytes=room,
            )
        )  # fmt: skip
    machine = Machine(text, "unified" if row.unified else "discrete")
    own = SelfUsage(Absent.NOT_AVAILABLE, 0.0, 0.0, 0.0, memory_locked=False)
    return Snapshot(0, 0.0, 0.0, "", text, 1.0, True, machine, own, tuple(pools), devices=tuple(devices))


def _pool(name: str, kind: PoolKind, label: str, size: int) -> Pool:
    taken = min(size, IDLE_BYTES) if kind is PoolKind.SYSTEM_RAM else 0
    left = size - taken
    return Pool(name, kind, label, size, taken, left, "products", Quality.ESTIMATED, free_bytes=left)


def _saved(path: Path) -> Snapshot:
    try:
        return snapshot_from(read_small(path, MAX_SNAPSHOT_BYTES))
    except SnapshotDecodeError as error:
        raise InvalidInputError(f"{path}: is not a saved /api/v1/snapshot: {error}") from None
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from None


def without_load(snapshot: Snapshot) -> Snapshot:
    """Return a machine on which only its system runs: no process, no lease, and what drivers reserve."""
    ram = find_system_ram(snapshot.pools)
    pools = tuple(_emptied(pool, IDLE_BYTES if pool is ram else 0) for pool in snapshot.pools)
    empty = replace(snapshot, pools=pools, processes=(), leases=(), shares=())
    sizes = {pool.id: pool.available_bytes for pool in pools}
    within = {share.id: share.within for share in snapshot.shares}
    devices = []
    for device in snapshot.devices:
        whole = compute_capacity(device, snapshot)
        places = tuple(dict.fromkeys(_pool_of(place, within) for place in device.allocates_from))
        rooms = [room for place in places if isinstance(room := sizes.get(place), int)]
        room = min(whole, sum(rooms)) if isinstance(whole, int) and rooms else whole
        changed = replace(device, headroom_bytes=room, headroom_after_reclaim_bytes=room)
        devices.append(replace(changed, allocates_from=places))
    return replace(empty, devices=tuple(devices))


def _pool_of(place: str, within: Mapping[str, str]) -> str:
    """Return the pool around a share, after at most as many steps as there are shares."""
    for _ in within:
        place = within.get(place, place)
    return place


def _emptied(pool: Pool, idle: int) -> Pool:
    reserved = pool.reserved_bytes if isinstance(pool.reserved_bytes, int) else 0
    used = min(pool.size_bytes, max(idle, reserved))
    left = pool.size_bytes - used
    return replace(pool, used_bytes=used, available_bytes=left, free_bytes=left)
