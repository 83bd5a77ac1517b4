"""Memory of one GPU or NPU, before it is related to System RAM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.findings import absent_device, stale_device, stale_pool, stale_share
from memwatch.core.model import Absent, Bytes, Device, Pool, Share, sum_figures
from memwatch.core.snapshot import Node


class DeviceMemory(Struct, frozen=True):
    """One device with its memory.

    `held`: bytes by process id, then by pool or share; `held_most`: upper bounds where these are lower bounds.
    `node`: the NUMA node inside MemTotal that is this GPU's own memory. `beyond_meminfo`: System RAM of the device
    that no line of /proc/meminfo contains, in bytes; None for a device that does not use System RAM. `unplaced`:
    processes with further memory of it, whose pool or share is not known.
    """

    device: Device
    explanation: str
    pools: tuple[Pool, ...] = ()
    shares: tuple[Share, ...] = ()
    held: Mapping[int, Mapping[str, Bytes]] = field(default_factory=dict)
    node: Node | None = None
    beyond_meminfo: Bytes | None = None
    held_most: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    unplaced: frozenset[int] = frozenset()

    def as_stale(self) -> DeviceMemory:
        """Return the device after its collector stopped answering. Figures from a NUMA node stay valid."""
        return self._without_figures(stale_device(self.device), Absent.STALE)

    def as_suspended(self) -> DeviceMemory:
        """Return the device while it is suspended: its memory has the same size, and no known use."""
        return self._without_figures(absent_device(self.device, Absent.SUSPENDED), Absent.SUSPENDED)

    def _without_figures(self, device: Device, why: Absent) -> DeviceMemory:
        return replace(
            self,
            device=device,
            pools=self.pools if self.node else tuple(stale_pool(pool, why) for pool in self.pools),
            shares=tuple(stale_share(share, why) for share in self.shares),
            held=without_figures(self.held, why),
            held_most={},
            beyond_meminfo=None if self.beyond_meminfo is None else why,
        )


class NpuMemory(Struct, frozen=True):
    """Memory of a neural processing unit, all of it in System RAM. `held` is as in `DeviceMemory`."""

    shares: tuple[Share, ...]
    held: Mapping[int, Mapping[str, Bytes]] = field(default_factory=dict)
    held_most: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    unplaced: frozenset[int] = frozenset()

    def as_stale(self) -> NpuMemory:
        shares = tuple(stale_share(share) for share in self.shares)
        return NpuMemory(shares, without_figures(self.held, Absent.STALE))


def without_figures(held: Mapping[int, Mapping[str, Bytes]], why: Absent) -> Mapping[int, Mapping[str, Bytes]]:
    """Return the places in which processes held memory, of which it is not known how much they hold now."""
    return {pid: dict.fromkeys(places, why) for pid, places in held.items()}


class Remainder(NamedTuple):
    """Used memory without a known holder. `overlap`: the known holders add up to more than is used."""

    bytes: Bytes
    overlap: bool = False


def remainder(used: Bytes, reserved: Bytes, held: Iterable[Bytes] | Absent) -> Remainder:
    """Subtract reserved and held memory from used memory. One unknown holder makes the result unknown."""
    if isinstance(used, Absent):
        return Remainder(used)
    known = sum_figures(held)
    if isinstance(known, Absent):
        return Remainder(known)
    rest = used - (0 if isinstance(reserved, Absent) else reserved) - known
    return Remainder(max(0, rest), rest < 0)
