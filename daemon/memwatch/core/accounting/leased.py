"""Effect of leases on the memory that others can use. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec.structs import replace

from memwatch.core.accounting.relations import HeadroomCalculator
from memwatch.core.backends.devices import Room, build_room, certain_part, read_system_ram
from memwatch.core.leases import Lease
from memwatch.core.model import OWN_CGROUP, Absent, Bytes, Device, Pool, PoolKind, Share
from memwatch.core.snapshot import Snapshot


class LeasedMachine(Protocol):
    """An object with the pools, shares and devices of a machine: a snapshot, or the library's machine."""

    @property
    def pools(self) -> tuple[Pool, ...]: ...

    @property
    def shares(self) -> tuple[Share, ...]: ...

    @property
    def devices(self) -> tuple[Device, ...]: ...


M = TypeVar("M", bound=LeasedMachine)


def sum_around(leases: Iterable[Lease], shares: Iterable[Share]) -> dict[str, int]:
    """Return the bytes that leases hold, by pool and share, each with what lies inside it."""
    within = {share.id: share.within for share in shares}
    sums: dict[str, int] = {}
    for lease in leases:
        for place, held in lease.held.items():
            for around in way_out(place, within):
                sums[around] = sums.get(around, 0) + held
    return sums


def held_by_pool(leases: Iterable[Lease], shares: Sequence[Share]) -> dict[str, int]:
    """Return the bytes that leases hold, by pool."""
    inside = {share.id for share in shares}
    return {place: held for place, held in sum_around(leases, shares).items() if place not in inside}


def way_out(place: str, within: Mapping[str, str]) -> Iterator[str]:
    """Yield a place and those around it, up to its pool."""
    yield place
    while place in within:
        place = within[place]
        yield place


def with_leases_used(here: M, leases: Iterable[Lease]) -> M:
    """Return the machine as if the leased bytes were in use already: what others than their holders can use."""
    leases = [lease for lease in leases if lease.held_bytes]
    if not leases:
        return here
    taken = sum_around(leases, here.shares)
    ids = {pool.id for pool in here.pools}
    of_devices = sum_around([lease for lease in leases if lease.target not in ids], here.shares)
    pools = tuple(_used_pool(pool, taken.get(pool.id, 0), of_devices.get(pool.id, 0)) for pool in here.pools)
    of_pools = sum_around([lease for lease in leases if lease.target in ids], here.shares)
    shares = tuple(_used_share(share, taken, of_pools) for share in here.shares)
    before, after = HeadroomCalculator(here.pools, here.shares), HeadroomCalculator(pools, shares)
    devices = tuple(_used_device(device, before, after) for device in here.devices)
    return replace(here, pools=pools, shares=shares, devices=devices)  # type: ignore[type-var]


def _used_pool(pool: Pool, count: int, of_devices: int) -> Pool:
    """Take bytes from a pool. The device of a GB10 with huge pages takes from these, which are in use already."""
    used, available, free = pool.used_bytes, pool.available_bytes, pool.free_bytes
    if not count or isinstance(used, Absent) or isinstance(available, Absent):
        return pool
    aside = pool.set_aside_free_bytes
    if pool.set_aside_bytes and of_devices and isinstance(aside, int):
        rest = replace(pool, set_aside_free_bytes=max(0, aside - of_devices))
        return _used_pool(rest, count - of_devices, 0)
    taken = min(count, available)
    return replace(
        pool,
        used_bytes=used + taken,
        available_bytes=available - taken,
        free_bytes=free if isinstance(free, Absent) else max(0, free - taken),
        contents=(),
    )


def _used_share(share: Share, taken: Mapping[str, int], of_pools: Mapping[str, int]) -> Share:
    """A container's limit of System RAM bounds what its programs lease, so that is used there as well."""
    used, count = share.used_bytes, taken.get(share.id, 0)
    if share.id == OWN_CGROUP:
        count += of_pools.get(share.within, 0)
    return share if isinstance(used, Absent) or not count else replace(share, used_bytes=used + count)


def _used_device(device: Device, before: HeadroomCalculator, after: HeadroomCalculator) -> Device:
    """Lower the headroom by as much as the leases lower what is left along its chains."""
    blank = replace(device, headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE, headroom_bytes=Absent.NOT_AVAILABLE)
    old, new = before.with_headroom(blank), after.with_headroom(blank)
    return replace(
        device,
        headroom_bytes=_lowered(device.headroom_bytes, old.headroom_bytes, new.headroom_bytes),
        headroom_after_reclaim_bytes=_lowered(
            device.headroom_after_reclaim_bytes, old.headroom_after_reclaim_bytes, new.headroom_after_reclaim_bytes
        ),
    )


def _lowered(known: Bytes, before: Bytes, after: Bytes) -> Bytes:
    if isinstance(known, Absent) or isinstance(before, Absent) or isinstance(after, Absent):
        return known
    return max(0, known - max(0, before - after))


def find_room(here: Snapshot, target: str) -> Room | None:
    """Return the memory of a pool or device, None if there is no such target.

    For System RAM the limits that bind the reader count, as in `fit`.
    """
    device = next((one for one in here.devices if one.id == target), None)
    if device is not None:
        return build_room(device, here)
    pool = next((one for one in here.pools if one.id == target), None)
    if pool is None:
        return None
    if pool.kind is PoolKind.SYSTEM_RAM:
        return read_system_ram(here).room
    holds_cache = pool.free_bytes is not Absent.NOT_SUPPORTED  # HBM that is a NUMA node
    certain = certain_part(pool.available_bytes, pool.free_bytes) if holds_cache else pool.available_bytes
    return Room(pool.size_bytes, certain, pool.available_bytes)


def list_targets(here: LeasedMachine) -> list[str]:
    """Return the ids that `find_room` knows."""
    return list(dict.fromkeys([*(pool.id for pool in here.pools), *(device.id for device in here.devices)]))


def choose_places(here: LeasedMachine, target: str, count: int) -> dict[str, int]:
    """Return how many bytes of a lease lie in each pool or share of its target. The first places are filled first.

    `here` is the machine with the other leases in use.
    """
    device = next((one for one in here.devices if one.id == target), None)
    if device is None or not device.allocates_from:
        return {target: count}
    chosen: dict[str, int] = {}
    for place in device.allocates_from[:-1]:
        alone = replace(device, allocates_from=(place,), headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE)
        left = HeadroomCalculator(here.pools, here.shares).with_headroom(alone).headroom_after_reclaim_bytes
        part = min(count, left) if isinstance(left, int) else 0
        if part:
            chosen[place] = part
            count -= part
    if count:
        chosen[device.allocates_from[-1]] = count
    return chosen
