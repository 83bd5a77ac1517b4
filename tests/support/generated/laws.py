"""Laws of the accounting, which hold on every machine, whatever its drivers report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import json

from memwatch.core.accounting.compose import Composer
from memwatch.core.drivers.nvml.records import GpuMemory, GpuReading, NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.linux.dmem import DmemReading
from memwatch.core.model import (
    Absent,
    Bytes,
    Pool,
    PoolKind,
    Process,
    Share,
    ShareKind,
    Words,
    find_system_ram,
    sum_figures,
)
from memwatch.core.snapshot import Machine, Node, Snapshot
from memwatch.core.snapshot_json import build_snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.render.owners_json import owners_json
from memwatch_web.metrics.families import Exporter
from memwatch_web.metrics.samples import PREFIX
from support.generated.machine import GeneratedMachine, tick
from support.null_reasons import figures_without_a_reason

# Counters of 64 bits, which the history, recordings and clients use.
MAX_FIGURE = 1 << 63
# Shares of a device that are in its own memory. Buffers in System RAM are not, on a card.
OWN_MEMORY = frozenset({ShareKind.GPU_LIMIT, ShareKind.MIG_INSTANCE, ShareKind.NVML_USED})
# Shares that a process holds bytes of; 0 is a reading if no process does and the list is complete.
SUMS = frozenset({ShareKind.CUDA_POOL, ShareKind.GPU_BUFFERS, ShareKind.NPU_BUFFERS})


def check_machine(machine: GeneratedMachine) -> None:
    """Raise AssertionError, with a sentence, if a law does not hold."""
    for complaint in complaints_about(machine):
        raise AssertionError(complaint)


def complaints_about(machine: GeneratedMachine) -> Iterator[str]:
    """Yield one sentence for each law that does not hold."""
    found, snapshot = tick(machine)
    places = Places(snapshot)
    yield from cache_complaints(machine, found)
    yield from pool_complaints(machine, snapshot)
    yield from share_complaints(snapshot, places)
    yield from headroom_complaints(snapshot, places)
    yield from process_complaints(snapshot, places)
    yield from zero_complaints(machine, snapshot)
    yield from json_complaints(snapshot)
    yield from metric_complaints(snapshot)


# A machine that shares nothing with another one: composing it evicts what is cached.
OTHER = (
    Findings(machine=Machine("other"), processes=(Process(1, 1.0, "other", 1, 1, "rss"),), dmem=DmemReading()),
    Findings(nvml=NvmlReading("1", "1", (GpuReading(0, "GPU-other", "0000:77:00.0", "NVIDIA L4"),))),
)


def cache_complaints(machine: GeneratedMachine, found: Findings) -> Iterator[str]:
    """Findings that were composed after others equal those that are composed alone."""
    Composer().compose(OTHER)
    alone = Composer().compose(machine.findings)
    if alone != found:
        names = [name for name in Findings.__struct_fields__ if getattr(alone, name) != getattr(found, name)]
        yield f"{names} differ after the findings of another tick"


class Places:
    """The pools and shares of a snapshot by id."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.pools = {pool.id: pool for pool in snapshot.pools}
        self.shares = {share.id: share for share in snapshot.shares}

    def root(self, place: str) -> str:
        """Return the pool, or the device, in which a place lies."""
        for _ in range(len(self.shares) + 1):
            if place not in self.shares:
                return place
            place = self.shares[place].within
        raise AssertionError(f"{place} is within itself")

    def whole(self, place: str) -> int | None:
        """Return the size of a pool, or that of the pool around a share; without a pool, its outermost limit."""
        outer: int | None = None
        for _ in range(len(self.shares) + 1):
            share = self.shares.get(place)
            if share is None:
                return self.pools[place].size_bytes if place in self.pools else outer
            outer, place = share.limit_bytes if isinstance(share.limit_bytes, int) else None, share.within
        return None

    def left(self, place: str) -> Bytes:
        """Return the smallest known remainder from a place to its pool."""
        found = []
        while place in self.shares:
            found.append(left_of(self.shares[place]))
            place = self.shares[place].within
        found += [left_of(self.pools[place])] if place in self.pools else []
        return min((figure for figure in found if isinstance(figure, int)), default=Absent.NOT_AVAILABLE)

    def used(self, place: str) -> Bytes:
        return (self.pools.get(place) or self.shares[place]).used_bytes


# Shares whose use is a difference of two figures, which may be equal.
DIFFERENCES = frozenset({ShareKind.CGROUP, ShareKind.GPU_LIMIT})


def pool_complaints(machine: GeneratedMachine, snapshot: Snapshot) -> Iterator[str]:
    """Pools are disjoint: each physical memory is in one, and the sum of their sizes is not above it."""
    names = [*(pool.id for pool in snapshot.pools), *(share.id for share in snapshot.shares)]
    if len(set(names)) != len(names) or len({one.id for one in snapshot.devices}) != len(snapshot.devices):
        yield "ids are not unique"
    labels = sorted(snapshot.labels.values())
    if len(set(labels)) != len(labels):
        yield f"labels are not unique: {labels}"
    yield from system_ram_complaints(machine, snapshot)
    devices, claims = {device.id: device for device in snapshot.devices}, claims_of(machine)
    for pool in snapshot.pools:
        yield from pool_figure_complaints(pool)
        if pool.kind in (PoolKind.VRAM, PoolKind.CARVEOUT):
            own = claims.get(card_key(devices[pool.id].pci, devices[pool.id].uuid), [])
            if (pool.size_bytes, pool.used_bytes) not in own:
                yield f"pool {pool.id} has {pool.used_bytes} of {pool.size_bytes} used, and the cards there {own}"
            else:
                own.remove(Claim(pool.size_bytes, pool.used_bytes))


def system_ram_complaints(machine: GeneratedMachine, snapshot: Snapshot) -> Iterator[str]:
    """System RAM and the GPU nodes inside it are not above MemTotal, or above all nodes in a container of lxcfs.

    A MemTotal that is not above the GPU nodes does not contain them.
    """
    ram = find_system_ram(snapshot.pools)
    hbm = [pool.size_bytes for pool in snapshot.pools if pool.kind is PoolKind.HBM]
    reported = sum(pool.size_bytes for one in machine.findings for pool in one.pools)
    sizes = [node.size_bytes for node in nodes_of(machine).values() if isinstance(node.size_bytes, int)]
    most = max(reported, sum(sizes), reported + sum(hbm) if reported <= sum(hbm) else 0)
    if ram and ram.size_bytes == 0:
        yield "System RAM has a size of 0"
    if ram and ram.size_bytes + sum(hbm) > most:
        yield f"System RAM of {ram.size_bytes} and GPU nodes of {hbm} exceed the {most} bytes of the kernel"
    if any(hbm.count(size) > sizes.count(size) for size in hbm):
        yield f"a node is in two pools: {hbm}"


def nodes_of(machine: GeneratedMachine) -> Mapping[int, Node]:
    return {node.id: node for one in machine.findings for node in one.nodes}


def card_key(pci: Words, uuid: Words) -> str:
    return f"{pci} {uuid}"


class Claim(NamedTuple):
    """A card's own memory, as its driver reports it."""

    size_bytes: int
    used_bytes: Bytes


def claims_of(machine: GeneratedMachine) -> dict[str, list[Claim]]:
    """Return the own memory of all cards by their address and UUID.

    A GPU whose memory is a NUMA node has no other: MemTotal contains it, although the node may not be visible.
    """
    nodes = nodes_of(machine)
    claims: dict[str, list[Claim]] = {}

    def add(pci: Words, uuid: Words, size: Bytes, used: Bytes, stale: bool) -> None:
        claim = Claim(size if isinstance(size, int) else 0, Absent.STALE if stale else used)
        claims.setdefault(card_key(pci, uuid), []).append(claim)

    for found in machine.findings:
        for gpu in found.nvml.gpus if found.nvml else ():
            node = nodes.get(gpu.numa_node) if isinstance(gpu.numa_node, int) else None
            is_unseen = node is None or isinstance(node.size_bytes, Absent) or isinstance(node.has_cpus, Absent)
            if isinstance(gpu.numa_node, Absent) or not is_unseen:
                add(gpu.pci, gpu.uuid, *_claim(gpu), "nvml" in found.stale)
        for card in found.amdgpu.gpus if found.amdgpu else ():
            vram = card.vram
            add(card.card.pci, card.card.unique_id, vram.total_bytes, vram.used_bytes, "amdgpu" in found.stale)
        for one in found.drm.cards if found.drm else ():
            size = sum(region.size_bytes for region in one.regions)
            used = sum_figures(region.used_bytes for region in one.regions)
            add(one.pdev or Absent.NOT_SUPPORTED, Absent.NOT_READ, size, used, "drm" in found.stale)
    return claims


def _claim(gpu: GpuReading) -> Claim:
    if isinstance(gpu.memory, GpuMemory):
        return Claim(gpu.memory.total_bytes, gpu.memory.total_bytes - gpu.memory.free_bytes)
    known = [one.memory.total_bytes for one in gpu.instances if isinstance(one.memory, GpuMemory)]
    return Claim(sum(known), gpu.memory)


def pool_figure_complaints(pool: Pool) -> Iterator[str]:
    for name in ("used_bytes", "available_bytes", "reserved_bytes", "unattributed_bytes", "set_aside_bytes"):
        figure = getattr(pool, name)
        if isinstance(figure, int) and figure > pool.size_bytes:
            yield f"pool {pool.id}: {name} {figure} exceeds its size {pool.size_bytes}"
    if isinstance(pool.set_aside_free_bytes, int) and pool.set_aside_free_bytes > pool.set_aside_bytes:
        yield f"pool {pool.id}: more of the set aside memory is free than there is"
    if isinstance(pool.free_bytes, int) and pool.free_bytes > pool.size_bytes:
        yield f"pool {pool.id}: free_bytes {pool.free_bytes} exceeds its size {pool.size_bytes}"
    used, rest = pool.used_bytes, pool.unattributed_bytes
    if isinstance(used, int) and isinstance(rest, int) and rest > used:
        yield f"pool {pool.id}: more is unattributed than used"
    rests = [part.size_bytes for part in pool.contents if part.kind == "unattributed"]
    if pool.contents and rests != [pool.unattributed_bytes]:
        yield f"pool {pool.id}: unattributed {pool.unattributed_bytes}, and {rests} in its contents"


def share_complaints(snapshot: Snapshot, places: Places) -> Iterator[str]:
    """Every share is within one pool, or within its device, and is not larger than that."""
    devices = {device.id: device for device in snapshot.devices}
    for share in snapshot.shares:
        root = places.root(share.id)
        if root not in places.pools and root != share.device:
            yield f"share {share.id} is within {root}, which is neither a pool nor its device"
        whole, parent = places.whole(share.within), places.shares.get(share.within)
        for name in ("used_bytes", "limit_bytes", "peak_bytes"):
            figure = getattr(share, name)
            if isinstance(figure, int) and whole is not None and figure > whole:
                yield f"share {share.id}: {name} {figure} exceeds {share.within} with {whole}"
        limits = share.limit_bytes, parent.limit_bytes if parent else None
        if isinstance(limits[0], int) and isinstance(limits[1], int) and limits[0] > limits[1]:
            yield f"share {share.id}: its limit {limits[0]} exceeds that of {share.within}, {limits[1]}"
        if share.device in devices and root in places.pools and share.kind in OWN_MEMORY:
            reach = {places.root(place) for place in devices[str(share.device)].allocates_from}
            if root not in reach | {share.device}:
                yield f"share {share.id} of {share.device} is in {root}, from which that does not allocate"


def headroom_complaints(snapshot: Snapshot, places: Places) -> Iterator[str]:
    """Certain headroom ≤ headroom ≤ memory that the pools have available, or free huge pages."""
    for device in snapshot.devices:
        most, certain = device.headroom_after_reclaim_bytes, device.headroom_bytes
        if isinstance(certain, int) and not isinstance(most, int):
            yield f"{device.id}: a certain headroom of {certain}, and none at all"
        if isinstance(certain, int) and isinstance(most, int) and certain > most:
            yield f"{device.id}: {certain} bytes are certain, of a headroom of {most}"
        known = [figure for figure in map(places.left, device.allocates_from) if isinstance(figure, int)]
        is_bounded = known and len(known) == len(device.allocates_from)
        if isinstance(most, int) and is_bounded and most > sum(known):
            yield f"{device.id}: headroom {most} exceeds the {known} that are left where it allocates"


def left_of(place: Pool | Share) -> Bytes:
    """Return what is left of a pool, or of the limit of a share. Free huge pages are used, and left for CUDA."""
    if isinstance(place, Pool):
        if isinstance(place.available_bytes, Absent) or isinstance(place.set_aside_free_bytes, Absent):
            return place.available_bytes
        return max(place.available_bytes, place.set_aside_free_bytes)
    if isinstance(place.limit_bytes, Absent) or isinstance(place.used_bytes, Absent):
        return Absent.NOT_AVAILABLE
    return max(0, place.limit_bytes - place.used_bytes)


def process_complaints(snapshot: Snapshot, places: Places) -> Iterator[str]:
    """Processes hold bytes of existing places, none more than all of it, and together no more, or it is said."""
    held: dict[str, list[Bytes]] = {}
    for process in snapshot.processes:
        for place, figure in process.device_bytes.items():
            if place not in places.pools and place not in places.shares:
                yield f"process {process.pid} holds bytes of {place}, which does not exist"
                return
            whole = places.whole(place)
            if isinstance(figure, int) and whole is not None and figure > whole:
                yield f"process {process.pid} holds {figure} bytes of {place}, which has {whole}"
            held.setdefault(place, []).append(figure)
        low, high = process.footprint_low_bytes, process.footprint_high_bytes
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield f"process {process.pid}: footprint from {low} to {high}"
    for place, figures in held.items():
        known, used = sum(figure for figure in figures if isinstance(figure, int)), places.used(place)
        if isinstance(used, int) and known > used and not is_marked(snapshot, places, place):
            yield f"processes hold {known} bytes of {place}, which has {used} in use"


def is_marked(snapshot: Snapshot, places: Places, place: str) -> bool:
    """Return True if the snapshot says that processes count some bytes of this place twice."""
    if place in places.pools:
        return places.pools[place].overlap
    notes = [places.shares[place].note or ""]
    notes += [
        note for device in snapshot.devices if device.id == places.shares[place].device for note in device.notes
    ]
    return any("share" in note or "exceed" in note for note in notes)


def zero_complaints(machine: GeneratedMachine, snapshot: Snapshot) -> Iterator[str]:
    """No 0 comes from a figure that no driver reports."""
    if not machine.is_positive:
        return
    if not snapshot.pools and 0 in (snapshot.total.size_bytes, snapshot.total.used_bytes):
        yield "without a pool, the total is 0"
    lists = {device.id: device.process_list for device in snapshot.devices}
    for pool in snapshot.pools:
        if pool.size_bytes == 0 or (pool.free_bytes == 0 and "less GPU nodes" not in pool.source):
            yield f"pool {pool.id}: {pool.size_bytes} bytes, of which {pool.free_bytes} are free"
    for share in snapshot.shares:
        is_sum = share.kind in SUMS and lists.get(str(share.device), "complete") == "complete"
        if share.limit_bytes == 0 or (share.used_bytes == 0 and not is_sum and share.kind not in DIFFERENCES):
            yield f"share {share.id}: {share.used_bytes} of {share.limit_bytes} bytes, list is partial"
    for process in snapshot.processes:
        if 0 in (process.rss_bytes, process.footprint_bytes, *process.device_bytes.values()):
            yield f"process {process.pid} has 0 bytes: {process.device_bytes}"


def json_complaints(snapshot: Snapshot) -> Iterator[str]:
    """JSON has every figure, and reads as the same snapshot."""
    found = json.decode(to_bytes(snapshot_json(snapshot)))
    yield from (f"{path} is {figure}" for path, figure in figures_in(found) if figure >= MAX_FIGURE)
    yield from (f"{name} is null without a reason" for name in figures_without_a_reason(found))
    again = build_snapshot(found)
    for name in ("pools", "shares", "devices", "processes", "nodes", "pressure", "swap", "zram", "tegrastats"):
        if getattr(again, name) != getattr(snapshot, name):
            yield f"{name} differ after JSON: {getattr(snapshot, name)} became {getattr(again, name)}"
    owners = json.decode(to_bytes(owners_json(snapshot, "unit")))
    yield from (f"{name} of an owner is null without a reason" for name in figures_without_a_reason(owners))
    yield from (f"{path} is {figure}" for path, figure in figures_in(owners) if not 0 <= figure < MAX_FIGURE)


def figures_in(value: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the integers of decoded JSON with their paths."""
    for name, part in value.items() if type(value) is dict else enumerate(value):
        kind = type(part)
        if kind is int:
            yield f"{path}.{name}", part
        elif kind is dict or kind is list:
            yield from figures_in(part, f"{path}.{name}")


def metric_complaints(snapshot: Snapshot) -> Iterator[str]:
    """Each known figure has one sample, an absent one has none, and no two samples have the same labels."""
    exporter = Exporter("test", max_processes=lambda: 20)
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in exporter.families(snapshot):
        for sample in family.samples:
            labels = samples.setdefault(sample.name, {})
            key = tuple(sample.labels.values())
            if key in labels:
                yield f"{sample.name}{key} has two samples"
            labels[key] = sample.value
    for name, records in METRICS.items():
        listed = {key[0]: value for key, value in samples.get(PREFIX + name, {}).items()}
        figures = dict(records(snapshot))
        if listed != {key: figure for key, figure in figures.items() if isinstance(figure, int)}:
            yield f"{name} has {listed}, and the snapshot {figures}"


METRICS: Mapping[str, Callable[[Snapshot], Iterable[tuple[str, Bytes]]]] = {
    "pool_size_bytes": lambda one: [(pool.id, pool.size_bytes) for pool in one.pools],
    "pool_used_bytes": lambda one: [(pool.id, pool.used_bytes) for pool in one.pools],
    "pool_available_bytes": lambda one: [(pool.id, pool.available_bytes) for pool in one.pools],
    "share_used_bytes": lambda one: [(share.id, share.used_bytes) for share in one.shares],
    "share_limit_throttles": lambda one: [
        (share.id, int(share.limit_throttles))
        for share in one.shares
        if share.kind is ShareKind.CGROUP and isinstance(share.limit_bytes, int)
    ],
    "share_limit_bytes": lambda one: [(share.id, share.limit_bytes) for share in one.shares],
    "device_headroom_after_reclaim_bytes": lambda one: [
        (device.id, device.headroom_after_reclaim_bytes) for device in one.devices
    ],
    "device_headroom_bytes": lambda one: [(device.id, device.headroom_bytes) for device in one.devices],
}
