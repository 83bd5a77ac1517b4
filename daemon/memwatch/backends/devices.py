"""The snapshot's devices as backends list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from memwatch.backends.model import BackendDevice
from memwatch.model import Absent, Architecture, Bytes, Device, Pool, Share, ShareKind, ram_of, total_of
from memwatch.snapshot import Snapshot

# Whether GPU and processors share one memory, of which an APU's carve-out is a part that firmware took away. A
# coherent GPU (GH200) has memory of its own that the CPU can reach.
UNIFIED = {
    Architecture.UNIFIED: True,
    Architecture.CARVEOUT: True,
    Architecture.COHERENT: False,
    Architecture.DISCRETE: False,
}


class Places(Protocol):
    """Whatever knows the pools and shares of a machine."""

    @property
    def pools(self) -> tuple[Pool, ...]: ...

    @property
    def shares(self) -> tuple[Share, ...]: ...


def devices_of(
    devices: Iterable[Device], snapshot: Snapshot, own_rule: str | None = None
) -> tuple[BackendDevice, ...]:
    """`own_rule`: the interface whose own rule of what is left bounds what it is given."""
    return tuple(listed(device, snapshot, own_rule) for device in devices)


def listed(device: Device, snapshot: Snapshot, own_rule: str | None = None) -> BackendDevice:
    return BackendDevice(
        id=device.id,
        name=device.name,
        kind="gpu",
        size_bytes=capacity_of(device, snapshot),
        headroom_bytes=device.headroom_bytes,
        unified=UNIFIED.get(device.architecture, Absent.NOT_AVAILABLE),
        note=None if device.state == "ok" else condition_of(device),
        state=device.state,
        own_headroom_bytes=device.api_free_bytes.get(own_rule) if own_rule else None,
    )


def condition_of(device: Device) -> str:
    """In words that can follow its name: "is lost", "needs a reset"."""
    return "needs a reset" if device.state == "needs_reset" else f"is {device.state}"


def system_ram_of(snapshot: Places) -> tuple[Bytes, Bytes]:
    """Size and what is left of System RAM for a program on the CPU: a container's limit bounds both."""
    ram = ram_of(snapshot.pools)
    if ram is None:
        return Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE
    whole, room = ram.size_bytes, ram.available_bytes
    for share in snapshot.shares:
        if share.kind is not ShareKind.CGROUP or isinstance(share.limit_bytes, Absent):
            continue
        whole = min(whole, share.limit_bytes)
        if isinstance(room, int) and isinstance(share.used_bytes, int):
            room = min(room, max(0, share.limit_bytes - share.used_bytes))
    return whole, room


def capacity_of(device: Device, snapshot: Places) -> Bytes:
    """The most it can use: of ways into one pool the widest, of different pools all. As headroom is reckoned."""
    widest: dict[str, int] = {}
    for place in device.allocates_from:
        pool, room = _room(place, snapshot)
        widest[pool] = max(room, widest.get(pool, 0))
    return total_of(widest.values()) if widest else Absent.NOT_AVAILABLE


def _room(place: str, snapshot: Places) -> tuple[str, int]:
    """The pool that a way ends in, and the narrowest of its limits."""
    shares = {share.id: share for share in snapshot.shares}
    limits = []
    while place in shares:
        limit = shares[place].limit_bytes
        limits.append(limit if isinstance(limit, int) else None)
        place = shares[place].within
    pool = next(pool for pool in snapshot.pools if pool.id == place)
    return place, min([pool.size_bytes, *(limit for limit in limits if limit is not None)])


def pci_numbers(address: object) -> tuple[int, ...] | None:
    """An address as numbers, so that 00000000:01:00.0 (NVML) and 0000:01:00.0 (sysfs) are one."""
    parts = str(address).replace(".", ":").split(":") if isinstance(address, str) else []
    try:
        numbers = tuple(int(part, 16) for part in parts)
    except ValueError:
        return None
    return numbers if len(numbers) == 4 else None
