"""Machines that a request names: `2x rtx4090 + 128GiB`, `gb10`, or a saved snapshot. Nothing else runs on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.backends.devices import compute_capacity
from memwatch.core.model import (
    RAM,
    RAM_LABEL,
    Absent,
    Architecture,
    Device,
    Pool,
    PoolKind,
    Quality,
    Share,
    ShareKind,
    find_root,
    find_system_ram,
)
from memwatch.core.snapshot import Machine, SelfUsage, Snapshot
from memwatch.core.snapshot_json import SnapshotDecodeError, snapshot_from
from memwatch.planning import read_table
from memwatch.planning.arguments import InvalidInputError, parse_bytes
from memwatch.planning.model_file import read_small
from memwatch.planning.request import MAX_GPUS

# `2x NAME + 128GiB` or `NAME x2 + 128GiB`, in lower case. A size has a unit: "ryzen ai max+ 395" is a name.
WITH_RAM = re.compile(r"(.+?)\s*\+\s*([0-9][0-9.]*\s*[a-z]+)")
BEFORE, BEHIND = re.compile(r"([0-9]{1,30})\s*[x×]\s*(.+)"), re.compile(r"(.+?)\s+[x×]\s*([0-9]{1,30})")
# Parts of a product's name that users write or leave out.
MAKERS = re.compile(r"[\s_+-]|nvidia|geforce|radeon|amd")
SUFFIX = ".json"
MORE_GPUS = (2, 4, 8)
MAX_SNAPSHOT_BYTES = 16 << 20
# An idle Linux with a desktop and its services. Without a desktop it takes about 1 GiB.
IDLE_BYTES = 4 << 30


class Product(Struct, frozen=True):
    """A row of products.json. `names`: as drivers report them. `size_bytes`: the total that the driver reports, or
    MemTotal if `unified`. `bandwidth`: of its memory, bytes a second, by a document; None without one. `aliases`:
    other names by which it is sold or known. `limit_bytes`: the part of a unified memory that the GPU gets without
    a setting of the operator, None for all of it."""

    names: tuple[str, ...]
    vendor: str
    size_bytes: int
    bandwidth: int | None = None
    unified: bool = False
    aliases: tuple[str, ...] = ()
    limit_bytes: int | None = None


def shorten_name(name: str) -> str:
    """Return a product's name without case, spaces and makers."""
    return MAKERS.sub("", name.lower())


def find_bandwidth(name: str) -> int | None:
    """Return the memory's bandwidth of a GPU by its driver's name for it, None if it is not in the table."""
    rows = read_table("products", Product).values()
    return next((row.bandwidth for row in rows if name in row.names), None)


def read_machine(text: str) -> Snapshot:
    """Return the empty machine that `text` describes. Raises InvalidInputError."""
    if text.endswith(SUFFIX):
        return without_load(_saved(Path(text)))
    count, word, beside = _parse(text)
    row, ram = read_table("products", Product)[word], parse_bytes(beside) if beside else 0
    if row.unified and ram:
        raise InvalidInputError(f"{word} has one memory of {row.size_bytes >> 30} GiB; leave out + {beside}")
    return _build(text, row, count, ram)


def more_gpus_of(text: str) -> list[str]:
    """Return the same machine with more GPUs, the fewest first; none for a saved snapshot."""
    if text.endswith(SUFFIX):
        return []
    count, word, beside = _parse(text)
    return [f"{more}x {word}{f' + {beside}' if beside else ''}" for more in MORE_GPUS if more > count]


def is_saved_simulation(text: str, machine: Snapshot) -> bool:
    """Return True for a saved snapshot of a demo or replay."""
    return text.endswith(SUFFIX) and machine.simulated


def _parse(text: str) -> tuple[int, str, str]:
    """Return the number of GPUs, the row of the product, and the size of System RAM, empty if it is not named."""
    rows = read_table("products", Product)
    known = {shorten_name(name): key for key, row in rows.items() for name in (key, *row.names, *row.aliases)}
    match = WITH_RAM.fullmatch(text.strip().lower())
    named, beside = (match[1], match[2]) if match else (text.strip().lower(), "")
    readings = list(_list_readings(named))
    count, word = next((one for one in readings if shorten_name(one[1]) in known), readings[-1])
    if (word := known.get(shorten_name(word), shorten_name(word))) not in rows:
        raise InvalidInputError(f"{text[:40]!r} is not a machine that is known; {_suggest(word, rows)}")
    if not 1 <= count <= MAX_GPUS:
        raise InvalidInputError(
            f"{text[:40]!r} has {count:,} GPUs, and a machine has 1 to {MAX_GPUS:,}; for example 2x {word}"
        )
    return count, word, beside


def _list_readings(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbers of GPUs with a name: "4090" and "7900 xtx" are names, and "4090 x2" is two of one."""
    yield 1, text
    if match := BEHIND.fullmatch(text):
        yield int(match[2]), match[1]
    if match := BEFORE.fullmatch(text):
        yield int(match[1]), match[2]


def _suggest(word: str, rows: Mapping[str, Product]) -> str:
    """Return a clause with the nearest products, or all of them if none is near."""
    from difflib import get_close_matches  # takes 4 ms

    near = get_close_matches(word[:40], rows, 3, 0.6)
    if near:
        return f"perhaps {' or '.join(near)}; a saved /api/v1/snapshot (machine.json) is one too"
    return "for example 2x rtx4090 + 128GiB, a saved /api/v1/snapshot (machine.json), or one of " + ", ".join(rows)


def _build(text: str, row: Product, count: int, ram: int) -> Snapshot:
    """Return a machine. Several unified ones are nodes, each with its memory, of which its system takes part."""
    alone = row.unified and count == 1
    room = min(row.size_bytes - IDLE_BYTES * row.unified, row.limit_bytes or row.size_bytes)
    pools = [_pool(RAM, PoolKind.SYSTEM_RAM, RAM_LABEL, row.size_bytes if alone else ram)]
    devices: list[Device] = []
    shares: list[Share] = []
    for at in range(count):
        place = RAM if alone else f"gpu{at}"
        if not alone:
            pools.append(_pool(place, PoolKind.VRAM, f"memory of {place}", row.size_bytes))
        if row.limit_bytes:
            shares.append(_limit(f"gpu{at}", place, row.limit_bytes))
            place = shares[-1].id
        kind = Architecture.UNIFIED if row.unified else Architecture.DISCRETE
        devices.append(
            Device(
                f"gpu{at}", row.vendor, row.names[0], kind, allocates_from=(place,), headroom_bytes=room,
                headroom_after_reclaim_bytes=room,
            )
        )  # fmt: skip
    machine = Machine(text, "unified" if row.unified else "discrete")
    own = SelfUsage(Absent.NOT_AVAILABLE, 0.0, 0.0, 0.0, memory_locked=False)
    parts = tuple(pools), tuple(shares)
    return Snapshot(0, 0.0, 0.0, "", text, 1.0, True, machine, own, *parts, devices=tuple(devices))


def _limit(gpu: str, place: str, size: int) -> Share:
    """Return the working set of a GPU of Apple."""
    kind, label = ShareKind.METAL_WORKING_SET, "Metal working set"
    return Share(f"{gpu}.metal", kind, label, place, 0, "products", Quality.ESTIMATED, size, gpu)


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
    """Return a machine on which only its system runs: no process, no lease, what drivers reserve, and the limits of
    shares. It has at least the room that is left now.
    """
    ram = find_system_ram(snapshot.pools)
    pools = tuple(_emptied(pool, IDLE_BYTES if pool is ram else 0) for pool in snapshot.pools)
    shares = tuple(replace(one, used_bytes=0) for one in snapshot.shares)
    sizes = {pool.id: pool.available_bytes for pool in pools}
    within = {share.id: share.within for share in snapshot.shares}
    devices = []
    for device in snapshot.devices:
        whole = compute_capacity(device, snapshot)
        places = dict.fromkeys(find_root(place, within) for place in device.allocates_from)
        rooms = [room for place in places if isinstance(room := sizes.get(place), int)]
        room = min(whole, sum(rooms)) if isinstance(whole, int) and rooms else whole
        devices.append(replace(device, headroom_bytes=room, headroom_after_reclaim_bytes=room))
    return replace(
        snapshot, pools=pools, shares=shares, devices=tuple(devices), processes=(), leases=(), engines=()
    )


def _emptied(pool: Pool, idle: int) -> Pool:
    reserved = pool.reserved_bytes if isinstance(pool.reserved_bytes, int) else 0
    used = min(pool.size_bytes, max(idle, reserved))
    used = min(used, pool.used_bytes) if isinstance(pool.used_bytes, int) else used
    left = pool.size_bytes - used
    return replace(pool, used_bytes=used, available_bytes=left, free_bytes=left)
