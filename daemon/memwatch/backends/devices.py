"""The snapshot's devices as backends list them."""

from __future__ import annotations

from collections.abc import Iterable

from memwatch.backends.model import BackendDevice
from memwatch.model import Absent, Architecture, Bytes, Device, total_of
from memwatch.snapshot import Snapshot

# Whether what it allocates is System RAM. A coherent GPU (GH200) has memory of its own that the CPU can reach.
UNIFIED = {
    Architecture.UNIFIED: True,
    Architecture.CARVEOUT: True,
    Architecture.COHERENT: False,
    Architecture.DISCRETE: False,
}


def devices_of(devices: Iterable[Device], snapshot: Snapshot) -> tuple[BackendDevice, ...]:
    return tuple(listed(device, snapshot) for device in devices)


def listed(device: Device, snapshot: Snapshot) -> BackendDevice:
    return BackendDevice(
        id=device.id,
        name=device.name,
        kind="gpu",
        size_bytes=capacity_of(device, snapshot),
        headroom_bytes=device.headroom_bytes,
        unified=UNIFIED.get(device.architecture, Absent.NOT_AVAILABLE),
        note=None if device.state == "ok" else condition_of(device),
    )


def condition_of(device: Device) -> str:
    """In words that can follow its name: "is lost", "needs a reset"."""
    return "needs a reset" if device.state == "needs_reset" else f"is {device.state}"


def capacity_of(device: Device, snapshot: Snapshot) -> Bytes:
    """The most it can use: of ways into one pool the widest, of different pools all. As headroom is reckoned."""
    widest: dict[str, int] = {}
    for place in device.allocates_from:
        pool, room = _room(place, snapshot)
        widest[pool] = max(room, widest.get(pool, 0))
    return total_of(widest.values()) if widest else Absent.NOT_AVAILABLE


def _room(place: str, snapshot: Snapshot) -> tuple[str, int]:
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
