"""Inputs of the pressure levels, extracted from the findings of one tick."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from memwatch.core.accounting.driver_errors import VENDORS, unassigned_errors
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import ABOUT_MEMORY, DriverError
from memwatch.core.model import (
    Absent,
    AllocatorReport,
    Architecture,
    Bytes,
    Device,
    Pool,
    PoolKind,
    Share,
    ShareKind,
    find_system_ram,
)
from memwatch.core.pressure.oom_kills import NO_KILLS, NewKills
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import CgroupPressure, Kernel, MemoryPsi, Node, Swap

_OWN_MEMORY = (PoolKind.VRAM, PoolKind.HBM, PoolKind.CARVEOUT)


class Target(Struct, frozen=True):
    """A pool, a limited share, or a budget. `size_bytes`: its size or limit; `available_bytes`: the rest of it.

    `is_host`: System RAM or a limit inside it that the kernel enforces with the OOM killer. `is_limit`: its size is
    a limit or a budget, and not that of a pool.
    """

    id: str
    kind: str
    size_bytes: int
    available_bytes: int
    is_host: bool = False
    is_limit: bool = False

    @property
    def is_ram(self) -> bool:
        return self.kind == PoolKind.SYSTEM_RAM.value

    @property
    def used_ratio(self) -> float:
        return max(0.0, 1.0 - self.available_bytes / self.size_bytes)


class DriverErrors(Struct, frozen=True):
    """Number of a driver's errors of one kind. `places`: ids of the pools and shares that they concern."""

    device: str
    kind: str
    count: int
    places: frozenset[str] = frozenset()


class PressureInputs(Struct, frozen=True):
    """Inputs of one tick. `at`: monotonic seconds; `kills`: OOM kills since the previous tick;
    `node_pools`: the pools other than System RAM that are NUMA nodes, by node;
    `cgroup_oom_kills_total`: OOM kills at the limit of memwatchd's own cgroup; `free_bytes`: free System RAM;
    `device_bytes`: System RAM held by devices; `evicted_seconds`: total time that GPU queues were evicted;
    `failed_allocations`: total of allocations that programs report as failed.
    """

    at: float
    targets: tuple[Target, ...]
    psi: MemoryPsi | Absent = Absent.NOT_AVAILABLE
    swap: Swap | Absent = Absent.NOT_AVAILABLE
    kernel: Kernel = Kernel()
    fragmented_nodes: tuple[int, ...] = ()
    driver_errors: tuple[DriverErrors, ...] | None = None
    kills: NewKills = NO_KILLS
    node_pools: Mapping[int, str] = field(default_factory=dict)
    cgroup_oom_kills_total: int | None = None
    cgroup_pressure: CgroupPressure | None = None
    resumed: bool = False
    free_bytes: Bytes = Absent.NOT_AVAILABLE
    device_bytes: Bytes = Absent.NOT_AVAILABLE
    evicted_seconds: float | Absent = Absent.NOT_AVAILABLE
    failed_allocations: int = 0


def collect_inputs(
    findings: Findings,
    at: float,
    rules: PressureRules,
    resumed: bool = False,
    kills: NewKills = NO_KILLS,
    claims: Sequence[AllocatorReport] = (),
) -> PressureInputs:
    """Extract the inputs of one tick."""
    ram = find_system_ram(findings.pools)
    return PressureInputs(
        at=at,
        targets=build_targets(findings.pools, findings.shares, findings.devices, rules),
        psi=Absent.NOT_AVAILABLE if findings.psi is None else findings.psi,
        cgroup_pressure=findings.cgroup_pressure,
        swap=Absent.NOT_AVAILABLE if findings.swap is None else findings.swap,
        kernel=findings.kernel or Kernel(),
        fragmented_nodes=fragmented_nodes(findings.nodes, findings.devices) if findings.devices else (),
        driver_errors=driver_errors(findings) if findings.devices or findings.kernel_log else (),
        kills=kills,
        node_pools=find_node_pools(findings.pools, findings.nodes) if kills.named else {},
        cgroup_oom_kills_total=findings.cgroup_oom_kills_total,
        resumed=resumed,
        free_bytes=Absent.NOT_AVAILABLE if ram is None else ram.free_bytes,
        device_bytes=sum_device_bytes(findings.shares, ram.id) if ram and findings.shares else Absent.NOT_AVAILABLE,
        evicted_seconds=sum_evicted(findings) if findings.amdgpu else Absent.NOT_AVAILABLE,
        failed_allocations=sum([claim.ooms for claim in claims if isinstance(claim.ooms, int)]) if claims else 0,
    )


def find_node_pools(pools: Iterable[Pool], nodes: Iterable[Node]) -> Mapping[int, str]:
    """Return the pools that are read from the files of a NUMA node: those of GPUs."""
    by_source = {pool.source: pool.id for pool in pools if pool.kind in _OWN_MEMORY}
    sources = {node.id: f"sysfs:node{node.id}/meminfo" for node in nodes}
    return {number: by_source[source] for number, source in sources.items() if source in by_source}


def ram_used_ratio(pools: Iterable[Pool]) -> float | Absent:
    """Return the fraction of System RAM that is judged as used: reserved huge pages are not."""
    ram = find_system_ram(pools)
    return Absent.NOT_AVAILABLE if ram is None else ram.judged_ratio


def sum_evicted(findings: Findings) -> float | Absent:
    """Return the seconds that queues of GPUs were evicted which allocate from System RAM.

    A card evicts queues when its own memory is short, which is no matter of System RAM.
    """
    reading = findings.amdgpu
    if reading is None or not reading.evicted_seconds:
        return Absent.NOT_AVAILABLE
    apus = [device.pci for device in findings.devices if device.architecture is not Architecture.DISCRETE]
    return sum(seconds for pci, seconds in reading.evicted_seconds.items() if pci in apus)


def sum_device_bytes(shares: Sequence[Share], pool: str) -> Bytes:
    """Return the bytes of a pool that devices hold, as far as they are known."""
    known = [
        share.used_bytes
        for share in shares
        if share.within == pool and share.device is not None and isinstance(share.used_bytes, int)
    ]
    return sum(known) if known else Absent.NOT_AVAILABLE


def build_targets(
    pools: Sequence[Pool], shares: Sequence[Share], devices: Sequence[Device], rules: PressureRules
) -> tuple[Target, ...]:
    """Return everything with a known limit: pools, limited shares, and shares with a configured budget."""
    found = [*_pool_targets(pools, shares, devices), *(_share_targets(shares) if shares else ())]
    if not rules.by_target:
        return tuple(found)
    return tuple(_with_limit(target, rules.target_rules(target.id).limit_bytes) for target in found) + tuple(
        _budget_targets(shares, {target.id for target in found}, rules)
    )


def _pool_targets(pools: Sequence[Pool], shares: Sequence[Share], devices: Sequence[Device]) -> Iterator[Target]:
    for pool in pools:
        size, available = pool.size_bytes - pool.set_aside_bytes, pool.available_bytes
        if size <= 0 or not isinstance(available, int):
            continue
        if not devices or not any(_is_minor(pool, device, pools, shares) for device in devices):
            yield Target(pool.id, pool.kind.value, size, available, pool.kind is PoolKind.SYSTEM_RAM)


def _is_minor(pool: Pool, device: Device, pools: Sequence[Pool], shares: Sequence[Share]) -> bool:
    """Return True for a carve-out smaller than half of the memory its device can use.

    Such a carve-out is always full, which is no problem. The other memory of the device is its own target.
    """
    if pool.kind is not PoolKind.CARVEOUT or pool.id not in device.allocates_from:
        return False
    return 2 * pool.size_bytes < _sum_reachable(device, pools, shares)


def _sum_reachable(device: Device, pools: Sequence[Pool], shares: Sequence[Share]) -> int:
    """Return the total size a device can allocate from. A share counts with its limit or its pool's size."""
    sizes = {pool.id: pool.size_bytes for pool in pools}
    for share in shares:
        limit = share.limit_bytes
        sizes[share.id] = limit if isinstance(limit, int) else sizes.get(share.within, 0)
    return sum(sizes.get(place, 0) for place in device.allocates_from)


def _share_targets(shares: Sequence[Share]) -> Iterator[Target]:
    """Yield the limited shares. A control group's limit of 0 is a limit: one that holds memory is full.

    Of other shares, 0 is the answer of a driver that has no limit.
    """
    for share in shares:
        limit, used = share.limit_bytes, share.used_bytes
        if not isinstance(limit, int) or not isinstance(used, int):
            continue
        if limit == 0 and used and share.kind is ShareKind.CGROUP:
            yield Target(share.id, share.kind.value, used, 0, True, True)
        elif limit:
            yield Target(share.id, share.kind.value, limit, limit - used, share.kind is ShareKind.CGROUP, True)


def _with_limit(target: Target, limit: int | None) -> Target:
    """Return the target with `limit` as its size if that is a budget below its size."""
    if limit is None or limit >= target.size_bytes:
        return target
    used = target.size_bytes - target.available_bytes
    return Target(target.id, target.kind, limit, limit - used, target.is_host, True)


def _budget_targets(shares: Sequence[Share], known: set[str], rules: PressureRules) -> Iterator[Target]:
    """Yield shares whose only limit is a configured budget, such as the CUDA Pool."""
    for share in shares:
        limit, used = rules.target_rules(share.id).limit_bytes, share.used_bytes
        if share.id not in known and limit and isinstance(used, int):
            yield Target(share.id, share.kind.value, limit, limit - used, is_limit=True)


def fragmented_nodes(nodes: Sequence[Node], devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the NUMA nodes without a free 4 MiB block. Empty without a unified-memory GPU."""
    if not any(device.architecture is Architecture.UNIFIED for device in devices):
        return ()
    return tuple(node.id for node in nodes if node.free_large_blocks_bytes == 0 and node.has_cpus is not False)


def driver_errors(findings: Findings) -> tuple[DriverErrors, ...]:
    """Return drivers' errors about memory, from devices and the kernel log. Errors of programs are left out."""
    within = {share.id: share.within for share in findings.shares}
    found = [
        DriverErrors(device.id, kind, count, _find_places(device, within))
        for device in findings.devices
        for kind, count in device.errors.items()
        if kind in ABOUT_MEMORY
    ]
    if findings.kernel_log is None:
        return tuple(found)
    others = [one for one in unassigned_errors(findings.devices, findings.kernel_log) if one.kind in ABOUT_MEMORY]
    return (*found, *(_unassigned(one, findings, within) for one in others))


def _unassigned(error: DriverError, findings: Findings, within: Mapping[str, str]) -> DriverErrors:
    """Return an error that belongs to no known device.

    One that names a GPU concerns the memory of that GPU, which is gone. One without a name concerns the memory of
    all of the driver's GPUs, or System RAM if none is known.
    """
    places: frozenset[str] = frozenset()
    if not error.pci:
        gpus = [device for device in findings.devices if device.vendor == VENDORS[error.driver]]
        places = frozenset().union(*(_find_places(device, within) for device in gpus))
        ram = find_system_ram(findings.pools)
        if not gpus and ram is not None:
            places = frozenset({ram.id})
    return DriverErrors(error.place, error.kind, error.count, places)


def _find_places(device: Device, within: Mapping[str, str]) -> frozenset[str]:
    """Return the pools and shares that a device allocates from, and all that contain them."""
    places = set(device.allocates_from)
    for place in device.allocates_from:
        while place in within and within[place] not in places:
            place = within[place]
            places.add(place)
    return frozenset(places)
