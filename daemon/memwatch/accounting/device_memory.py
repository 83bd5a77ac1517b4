"""What one GPU adds to the picture of a machine, before it is put into relation with System RAM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.findings import stale_device, stale_pool, stale_share
from memwatch.model import Absent, Bytes, Device, Pool, Share, sum_figures
from memwatch.snapshot import Node


class DeviceMemory(Struct, frozen=True):
    """One device with its memory.

    `held`: by process id, how many bytes it holds of which pool or share. `node`: the NUMA node inside MemTotal
    that is this GPU's own memory.
    `beyond_meminfo`: the bytes of System RAM that the device holds and /proc/meminfo shows in none of its
    lines; None for a device that takes none from there.
    """

    device: Device
    explanation: str
    pools: tuple[Pool, ...] = ()
    shares: tuple[Share, ...] = ()
    held: Mapping[int, Mapping[str, Bytes]] = field(default_factory=dict)
    node: Node | None = None
    beyond_meminfo: Bytes | None = None

    def as_stale(self) -> DeviceMemory:
        """The same device after its collector fell silent. What a NUMA node says of itself is still true."""
        return replace(
            self,
            device=stale_device(self.device),
            pools=self.pools if self.node else tuple(stale_pool(pool) for pool in self.pools),
            shares=tuple(stale_share(share) for share in self.shares),
            held={},
            beyond_meminfo=None if self.beyond_meminfo is None else Absent.STALE,
        )


class NpuMemory(Struct, frozen=True):
    """What a neural processing unit adds; it has no memory of its own. `held` is as for a `DeviceMemory`."""

    shares: tuple[Share, ...]
    held: Mapping[int, Mapping[str, Bytes]] = field(default_factory=dict)

    def as_stale(self) -> NpuMemory:
        """The same after its collector fell silent."""
        return NpuMemory(tuple(stale_share(share) for share in self.shares))


class Remainder(NamedTuple):
    """The part of what is used that nobody known holds; whether the known holders add up to more."""

    bytes: Bytes
    overlap: bool = False


def remainder(used: Bytes, reserved: Bytes, held: Iterable[Bytes] | Absent) -> Remainder:
    """`held` are the figures of all holders. One that is not known leaves the remainder unknown."""
    if isinstance(used, Absent):
        return Remainder(used)
    known = sum_figures(held)
    if isinstance(known, Absent):
        return Remainder(known)
    rest = used - (0 if isinstance(reserved, Absent) else reserved) - known
    return Remainder(max(0, rest), rest < 0)
