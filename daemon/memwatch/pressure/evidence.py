"""What one tick found that says something about pressure, put in the shape in which it is judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memwatch.collector import Findings
from memwatch.model import (
    Absent,
    Architecture,
    Device,
    Pool,
    PoolKind,
    Share,
    ShareKind,
)
from memwatch.pressure.rules import PressureRules
from memwatch.snapshot import Kernel, Node, Stalls, Swap

# XIDs of NVIDIA's driver that speak of memory: double bit errors, page retirement and row remapping, contained
# and uncontained ECC errors; and 79, a GPU that fell off the bus. Those that applications cause are not here.
MEMORY_XIDS = frozenset({48, 63, 64, 79, 92, 94, 95})
_OWN_MEMORY = (PoolKind.VRAM, PoolKind.HBM, PoolKind.CARVEOUT)


@dataclass(frozen=True, slots=True)
class Target:
    """A pool, a limited share, or a budget: `size_bytes` is what it is judged by, `available_bytes` what is left.

    `is_host` is true for System RAM and the limits inside it that the kernel enforces by killing processes.
    """

    id: str
    kind: str
    size_bytes: int
    available_bytes: int
    is_host: bool = False

    @property
    def used_ratio(self) -> float:
        return max(0.0, 1.0 - self.available_bytes / self.size_bytes)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One tick. `at` is monotonic seconds. `driver_errors` counts by device what its driver said of memory."""

    at: float
    targets: tuple[Target, ...]
    stalls: Stalls | Absent = Absent.NOT_AVAILABLE
    swap: Swap | Absent = Absent.NOT_AVAILABLE
    kernel: Kernel = Kernel()
    fragmented_nodes: tuple[int, ...] = ()
    driver_errors: Mapping[str, int] | None = None
    resumed: bool = False


def evidence_of(findings: Findings, at: float, rules: PressureRules, resumed: bool) -> Evidence:
    """What of a tick says something about pressure."""
    return Evidence(
        at=at,
        targets=targets_of(findings.pools, findings.shares, findings.devices, rules),
        stalls=Absent.NOT_AVAILABLE if findings.stalls is None else findings.stalls,
        swap=Absent.NOT_AVAILABLE if findings.swap is None else findings.swap,
        kernel=findings.kernel or Kernel(),
        fragmented_nodes=fragmented_nodes(findings.nodes, findings.devices),
        driver_errors=driver_errors(findings.devices),
        resumed=resumed,
    )


def targets_of(
    pools: Sequence[Pool], shares: Sequence[Share], devices: Sequence[Device], rules: PressureRules
) -> tuple[Target, ...]:
    """Everything that has an end that is known: pools, limited shares, and what a user set a limit for."""
    found = [*_of_pools(pools, shares, devices), *_of_shares(shares)]
    return tuple(_with_limit(target, rules.of(target.id).limit_bytes) for target in found) + tuple(
        _of_budgets(shares, {target.id for target in found}, rules)
    )


def _of_pools(pools: Sequence[Pool], shares: Sequence[Share], devices: Sequence[Device]) -> Iterator[Target]:
    for pool in pools:
        size, available = pool.size_bytes - pool.set_aside_bytes, pool.available_bytes
        if size <= 0 or not isinstance(available, int):
            continue
        if not any(_is_minor(pool, device, pools, shares) for device in devices):
            yield Target(pool.id, pool.kind.value, size, available, pool.kind is PoolKind.SYSTEM_RAM)


def _is_minor(pool: Pool, device: Device, pools: Sequence[Pool], shares: Sequence[Share]) -> bool:
    """A carve-out that is less than half of what its device can have is always full, and that troubles nobody:
    what the device takes besides is judged by itself."""
    if pool.kind is not PoolKind.CARVEOUT or pool.id not in device.allocates_from:
        return False
    return 2 * pool.size_bytes < _reach_of(device, pools, shares)


def _reach_of(device: Device, pools: Sequence[Pool], shares: Sequence[Share]) -> int:
    """The size of all that a device can allocate from: shares by their limits, else by what they lie in."""
    sizes = {pool.id: pool.size_bytes for pool in pools}
    for share in shares:
        limit = share.limit_bytes
        sizes[share.id] = limit if isinstance(limit, int) else sizes.get(share.within, 0)
    return sum(sizes.get(place, 0) for place in device.allocates_from)


def _of_shares(shares: Sequence[Share]) -> Iterator[Target]:
    for share in shares:
        limit, used = share.limit_bytes, share.used_bytes
        if isinstance(limit, int) and limit and isinstance(used, int):
            yield Target(share.id, share.kind.value, limit, limit - used, share.kind is ShareKind.CGROUP)


def _with_limit(target: Target, limit: int | None) -> Target:
    """The same target with a budget below its size."""
    if limit is None or limit >= target.size_bytes:
        return target
    used = target.size_bytes - target.available_bytes
    return Target(target.id, target.kind, limit, limit - used, target.is_host)


def _of_budgets(shares: Sequence[Share], known: set[str], rules: PressureRules) -> Iterator[Target]:
    """Shares without a limit of their own that a user gave one, such as the CUDA Pool."""
    for share in shares:
        limit, used = rules.of(share.id).limit_bytes, share.used_bytes
        if share.id not in known and limit and isinstance(used, int):
            yield Target(share.id, share.kind.value, limit, limit - used)


def fragmented_nodes(nodes: Sequence[Node], devices: Sequence[Device]) -> tuple[int, ...]:
    """Nodes without a free block of 4 MiB, where a GPU has to find its memory there."""
    if not any(device.architecture is Architecture.UNIFIED for device in devices):
        return ()
    return tuple(node.id for node in nodes if node.free_4mib_bytes == 0 and node.has_cpus is not False)


def driver_errors(devices: Sequence[Device]) -> Mapping[str, int]:
    """How many errors that speak of memory each device's driver has reported."""
    return {
        device.id: sum(
            count
            for kind, count in device.errors.items()
            if kind.removeprefix("xid_").isdecimal() and int(kind.removeprefix("xid_")) in MEMORY_XIDS
        )
        for device in devices
    }
