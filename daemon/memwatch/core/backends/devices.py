"""Memory that a program can have: of System RAM within its limits, and of each device, as a backend has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from memwatch.core.model import (
    OWN_LIMIT,
    Absent,
    Architecture,
    Bytes,
    Device,
    Pool,
    Share,
    ShareKind,
    find_system_ram,
    sum_figures,
)
from memwatch.core.snapshot import Machine, Snapshot

# True if GPU and CPU share one memory. An APU's carve-out is a part of it that firmware reserves. A coherent GPU
# (GH200) has its own memory, which the CPU can access.
UNIFIED = {
    Architecture.UNIFIED: True,
    Architecture.CARVEOUT: True,
    Architecture.COHERENT: False,
    Architecture.DISCRETE: False,
}


class PoolsAndShares(Protocol):
    """An object with the pools and shares of a machine."""

    @property
    def pools(self) -> tuple[Pool, ...]: ...

    @property
    def shares(self) -> tuple[Share, ...]: ...


def describe_state(device: Device) -> str:
    """Return a device's state as a predicate: "is lost", "needs a reset"."""
    return "needs a reset" if device.state == "needs_reset" else f"is {device.state}"


class Room(NamedTuple):
    """Memory of a pool or device: its total, and what can be allocated now and after reclaim of page cache."""

    size_bytes: Bytes
    headroom_bytes: Bytes
    headroom_after_reclaim_bytes: Bytes

    def within(self, limit: Share) -> Room:
        """Return the memory within a limit. If its use is unknown, all of it may be left."""
        size, left = limit.limit_bytes, limit.left_bytes
        if isinstance(size, Absent):
            return self
        left = size if isinstance(left, Absent) else left
        bounds = zip(self, (size, left, left), strict=True)
        return Room(*(figure if isinstance(figure, Absent) else min(figure, bound) for figure, bound in bounds))


def list_binding_limits(shares: Iterable[Share], machine: Machine | None) -> list[Share]:
    """Return the cgroup limits that bind the programs a reading is for.

    That of the container in which the machine was read binds all of its programs. Outside of a container,
    memwatchd's own limit (`scope = "cgroup"`) binds memwatchd alone, and no other program. `OWN_LIMIT` is that of
    the process that asks.
    """
    contained = machine is not None and machine.in_container
    return [one for one in shares if one.kind is ShareKind.CGROUP and (contained or one.id == OWN_LIMIT)]


class SystemRam(NamedTuple):
    """System RAM for a program without a GPU. `limit`: the smallest limit that binds it, None without one."""

    room: Room
    limit: Share | None = None


def read_system_ram(snapshot: Snapshot) -> SystemRam:
    """Return the memory of System RAM for a program on the CPU, each figure within the limits that bind it."""
    ram = find_system_ram(snapshot.pools)
    if ram is None:
        return SystemRam(Room(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE))
    room = Room(ram.size_bytes, certain_part(ram.available_bytes, ram.free_bytes), ram.available_bytes)
    smallest, least = None, ram.size_bytes
    for share in list_binding_limits(snapshot.shares, snapshot.machine):
        room = room.within(share)
        if isinstance(share.limit_bytes, int) and share.limit_bytes < least:
            smallest, least = share, share.limit_bytes
    return SystemRam(room, smallest)


def certain_part(available: Bytes, free: Bytes) -> Bytes:
    """Return the part of the available bytes of System RAM that is free without reclaim."""
    if isinstance(available, Absent) or isinstance(free, Absent):
        return available if isinstance(available, Absent) else free
    return min(available, free)


def build_room(device: Device, snapshot: PoolsAndShares) -> Room:
    return Room(compute_capacity(device, snapshot), device.headroom_bytes, device.headroom_after_reclaim_bytes)


def compute_capacity(device: Device, snapshot: PoolsAndShares) -> Bytes:
    """Return the maximum that a device can use: the largest limit within each pool, summed over pools.

    Headroom is computed the same way.
    """
    widest: dict[str, int] = {}
    for place in device.allocates_from:
        pool, room = _room(place, snapshot)
        widest[pool] = max(room, widest.get(pool, 0))
    return sum_figures(widest.values()) if widest else Absent.NOT_AVAILABLE


def find_widest_place(device: Device, snapshot: PoolsAndShares) -> str:
    """Return the pool or share in which a device can use most: on an APU its carve-out or GTT. "" without any."""
    return max(device.allocates_from, key=lambda place: _room(place, snapshot)[1], default="")


def _room(place: str, snapshot: PoolsAndShares) -> tuple[str, int]:
    """Return (pool of a place, smallest limit on the path to it). A limit may be all that is known of a GPU."""
    shares = {share.id: share for share in snapshot.shares}
    limits = []
    while place in shares:
        limit = shares[place].limit_bytes
        limits.append(limit if isinstance(limit, int) else None)
        place = shares[place].within
    sizes = [pool.size_bytes for pool in snapshot.pools if pool.id == place]
    return place, min([*sizes, *(limit for limit in limits if limit is not None)], default=0)
