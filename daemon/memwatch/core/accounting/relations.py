"""Relations between devices and System RAM: shares of RAM, headroom, and device memory of processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.accounting import memoize
from memwatch.core.accounting.device_memory import DeviceMemory, NpuMemory
from memwatch.core.findings import Findings
from memwatch.core.linux.pci import NVIDIA
from memwatch.core.model import (
    PERHAPS_IN_RSS,
    Absent,
    Architecture,
    Bytes,
    Content,
    Device,
    Pool,
    PoolKind,
    Process,
    Quality,
    Share,
    ShareKind,
    find_system_ram,
    sum_figures,
)
from memwatch.core.snapshot import Machine, Node
from memwatch.core.units import size

# Reasons of figures that the driver has, but not now: the rest may contain them.
LOST = frozenset({Absent.STALE, Absent.INCONSISTENT})
OVERLAP = "the sum of its processes exceeds it: they share buffers, or were read at another time"
UNSEEN_GPU = "System RAM may contain memory of a GPU, which is not read as such."
MIXED = "GPUs of different kinds: each pool below is separate memory, and each share is part of a pool."


def with_device_memories(
    found: Findings, device_memories: Sequence[DeviceMemory], npus: Sequence[NpuMemory] = ()
) -> Findings:
    """Add the devices to the findings. Each byte is in one pool only, and each share within its parent."""
    memories: tuple[DeviceMemory | NpuMemory, ...] = (*device_memories, *npus)
    ram = find_system_ram(found.pools)
    if ram is not None and _holds_unseen_gpu(found, device_memories):
        found, ram = _with_unseen_gpu(found, ram)
    if not memories:
        return _with_clamped(found, ram)
    if ram is not None:
        ram = without_nodes(
            ram, [device_memory.node for device_memory in device_memories if device_memory.node is not None]
        )
        beyond = [
            device_memory.beyond_meminfo
            for device_memory in device_memories
            if device_memory.beyond_meminfo is not None
        ]
        ram = with_devices(ram, beyond)
    others = [pool for pool in found.pools if pool.kind is not PoolKind.SYSTEM_RAM]
    held = measure_held(*memories).sums
    pools = (
        *([ram] if ram else []),
        *others,
        *(mark_pool(pool, held) for device_memory in device_memories for pool in device_memory.pools),
    )
    sizes = {pool.id: pool.size_bytes for pool in pools}
    shares = (
        *(clamp(share, sizes) for share in found.shares),
        *(mark_share(clamp(share, sizes), held) for one in memories for share in one.shares),
    )
    chains = HeadroomCalculator(pools, shares)
    return replace(
        found,
        pools=pools,
        shares=shares,
        devices=(
            *found.devices,
            *(chains.with_headroom(device_memory.device) for device_memory in device_memories),
        ),
        machine=with_architecture(found.machine, *device_memories) if device_memories else found.machine,
    )


def _holds_unseen_gpu(found: Findings, memories: Sequence[DeviceMemory]) -> bool:
    """Check for memory of a GPU that is a NUMA node inside MemTotal, and cannot be told from System RAM.

    A driver names a node that is not read, or a node without CPUs is there beside GPUs of which none is read.
    """
    if found.nvml is not None:
        named = any(isinstance(gpu.numa_node, int) for gpu in found.nvml.gpus)
        return named and all(memory.node is None for memory in memories)
    without_cpus = any(node.has_cpus is False and node.size_bytes for node in found.nodes)
    return without_cpus and NVIDIA in (found.pci_gpus or {})


def _with_unseen_gpu(found: Findings, ram: Pool) -> tuple[Findings, Pool]:
    machine = found.machine or Machine()
    marked = replace(ram, quality=Quality.ESTIMATED)
    explained = replace(machine, explanation=" ".join(filter(None, (machine.explanation, UNSEEN_GPU))))
    pools = tuple(marked if pool is ram else pool for pool in found.pools)
    return replace(found, machine=explained, pools=pools), marked


def without_nodes(ram: Pool, nodes: Sequence[Node]) -> Pool:
    """Subtract the GPU nodes, which MemTotal contains, from System RAM.

    A MemTotal that is not larger than they are is not that of the machine, and does not contain them.
    """
    sizes = sum_figures([node.size_bytes for node in nodes])
    if not nodes or isinstance(sizes, Absent) or sizes >= ram.size_bytes:
        return ram
    size = ram.size_bytes - sizes
    is_estimated = Quality.ESTIMATED in (ram.quality, *(node.quality for node in nodes))
    available = _less(ram.available_bytes, [node.available_bytes for node in nodes])
    available = available if isinstance(available, Absent) else min(size, available)
    free, aside = _less(ram.free_bytes, [node.free_bytes for node in nodes]), min(size, ram.set_aside_bytes)
    rest = replace(
        ram,
        size_bytes=size,
        used_bytes=available if isinstance(available, Absent) else size - available,
        available_bytes=available,
        free_bytes=free if isinstance(free, Absent) else min(size, free),
        set_aside_bytes=aside,
        set_aside_free_bytes=ram.set_aside_free_bytes
        if isinstance(ram.set_aside_free_bytes, Absent)
        else min(aside, ram.set_aside_free_bytes),
        unattributed_bytes=Absent.NOT_SUPPORTED,
        contents=(),
        source=f"{ram.source} less GPU nodes",
        quality=Quality.ESTIMATED if is_estimated else Quality.DERIVED,
    )
    return _with_contents(rest, ram.contents, nodes)


def _with_contents(rest: Pool, contents: Sequence[Content], nodes: Sequence[Node]) -> Pool:
    """Subtract the nodes from each part of System RAM by use, if every node reports its parts."""
    used, available, free = rest.used_bytes, rest.available_bytes, rest.free_bytes
    if isinstance(used, Absent) or isinstance(available, Absent) or isinstance(free, Absent):
        return rest
    if not contents or not all(node.contents for node in nodes):
        return rest
    there = Counter({part.kind: part.size_bytes for node in nodes for part in node.contents})
    kinds = ("anonymous", "shared_memory", "huge_pages", "kernel")
    kept = tuple(
        replace(part, size_bytes=max(0, part.size_bytes - there[part.kind]))
        for part in contents
        if part.kind in kinds
    )
    unattributed = used - sum(part.size_bytes for part in kept)
    if unattributed < 0:
        return replace(rest, unattributed_bytes=0, overlap=True)
    others = {
        "unattributed": unattributed,
        "page_cache": max(0, available - free),
        "free": min(free, available),
    }
    parts = (*kept, *(Content(kind, size) for kind, size in others.items()))
    return replace(rest, unattributed_bytes=unattributed, contents=parts)


def _less(figure: Bytes, parts: Sequence[Bytes]) -> Bytes:
    """Subtract; never below 0, as the files are not read at the same instant."""
    total = sum_figures(parts)
    if isinstance(figure, Absent) or isinstance(total, Absent):
        return figure if isinstance(figure, Absent) else total
    return max(0, figure - total)


def with_devices(ram: Pool, beyond: Sequence[Bytes]) -> Pool:
    """Move memory of devices from unattributed memory to "devices": no line of meminfo contains it.

    If a device's figure is lost, it is not known how much of the rest is unattributed.
    """
    rest = ram.unattributed_bytes
    if isinstance(rest, Absent):
        return ram
    unknown = [
        figure for figure in beyond if figure in LOST or (isinstance(figure, int) and figure > ram.size_bytes)
    ]
    if unknown:
        reason = unknown[0] if isinstance(unknown[0], Absent) else Absent.INCONSISTENT
        return replace(ram, unattributed_bytes=reason, contents=())
    known = sum(figure for figure in beyond if isinstance(figure, int))
    explained = min(known, rest)
    contents = ram.contents
    if contents and explained:
        kept = [
            replace(one, size_bytes=one.size_bytes - explained) if one.kind == "unattributed" else one
            for one in contents
        ]
        contents = (*kept, Content("devices", explained))
    return replace(ram, unattributed_bytes=rest - explained, overlap=ram.overlap or known > rest, contents=contents)


def _with_clamped(found: Findings, ram: Pool | None) -> Findings:
    if ram is None or not found.shares:
        return found
    shares = tuple(clamp(share, {ram.id: ram.size_bytes}) for share in found.shares)
    return found if shares == found.shares else replace(found, shares=shares)


def clamp(share: Share, sizes: Mapping[str, int]) -> Share:
    """Reduce a driver's limit to the size of the pool.

    If more is used than the pool has, both figures are rejected: one of them is not this machine's (such as a
    container's meminfo), or the driver contradicts itself.
    """
    most = sizes.get(share.within)
    if most is not None and isinstance(share.used_bytes, int) and share.used_bytes > most:
        return replace(share, used_bytes=Absent.INCONSISTENT, limit_bytes=Absent.INCONSISTENT)
    if most is None or isinstance(share.limit_bytes, Absent) or share.limit_bytes <= most:
        return share
    note = f"the driver's limit of {size(share.limit_bytes)} exceeds its parent and is reduced to the parent's size"
    return replace(share, limit_bytes=most, note="; ".join(filter(None, (share.note, note))))


class HeldBytes(NamedTuple):
    """Known bytes of processes by pool or share: the sum of all processes, and the most that one may hold."""

    sums: Mapping[str, int]
    most: Mapping[str, int]


@memoize
def measure_held(*memories: DeviceMemory | NpuMemory) -> HeldBytes:
    sums: Counter[str] = Counter()
    most: dict[str, int] = {}
    for memory in memories:
        for places in memory.held.values():
            for place, figure in places.items():
                if isinstance(figure, int):
                    sums[place] += figure
                    most[place] = max(figure, most.get(place, 0))
        for bounds in memory.held_most.values():
            for place, figure in bounds.items():
                most[place] = max(figure, most.get(place, 0))
    return HeldBytes(sums, most)


def mark_pool(pool: Pool, held: Mapping[str, int]) -> Pool:
    """Mark a pool of which processes hold more than is used."""
    return replace(pool, overlap=True) if not pool.overlap and _holds_more(pool, held) else pool


def mark_share(share: Share, held: Mapping[str, int]) -> Share:
    """Note that processes hold more of a share than is used."""
    if not _holds_more(share, held):
        return share
    return replace(share, note="; ".join(filter(None, (share.note, OVERLAP))))


def _holds_more(place: Pool | Share, held: Mapping[str, int]) -> bool:
    return isinstance(place.used_bytes, int) and held.get(place.id, 0) > place.used_bytes


def bound_held(
    memories: Sequence[DeviceMemory | NpuMemory], sizes: Mapping[str, int], used: Mapping[str, int]
) -> Sequence[DeviceMemory | NpuMemory]:
    """Reject bytes of a process that exceed the pool in which they are, and cap those that exceed its use.

    `sizes` and `used` are by pool or share. The two were read at different times, or the driver counts buffers that
    are not there.
    """
    found = measure_held(*memories)
    if all(
        figure <= min(sizes.get(place, figure), used.get(place, figure)) for place, figure in found.most.items()
    ):
        return memories
    return [
        replace(
            memory,
            held=_bounded(memory.held, sizes, used),
            held_most={
                pid: {place: min(figure, used.get(place, figure)) for place, figure in places.items()}
                for pid, places in memory.held_most.items()
            },
        )
        for memory in memories
    ]


def _bounded(
    held: Mapping[int, Mapping[str, Bytes]], sizes: Mapping[str, int], used: Mapping[str, int]
) -> Mapping[int, Mapping[str, Bytes]]:
    def bounded(place: str, figure: Bytes) -> Bytes:
        if isinstance(figure, Absent):
            return figure
        if figure > sizes.get(place, figure) or (figure and used.get(place) == 0):
            return Absent.INCONSISTENT  # a card of which nothing is used refutes it, and is no reading of 0
        return min(figure, used.get(place, figure))

    return {
        pid: {place: bounded(place, figure) for place, figure in places.items()} for pid, places in held.items()
    }


def find_used(pools: Iterable[Pool], shares: Iterable[Share]) -> Mapping[str, int]:
    """Return the use of each pool and share where it is known. A sum of clients with shared buffers is no bound."""
    places: list[Pool | Share] = [*pools, *shares]
    exact = [one for one in places if one.quality is not Quality.ESTIMATED]
    return {one.id: one.used_bytes for one in exact if isinstance(one.used_bytes, int)}


def find_sizes(pools: Iterable[Pool], shares: Iterable[Share]) -> Mapping[str, int]:
    """Return the size of the pool in which each pool and share lies.

    Without a pool, as inside a memory partition, that is the outermost limit, if it is known.
    """
    sizes = {pool.id: pool.size_bytes for pool in pools}
    by_id = {share.id: share for share in shares}
    for name in by_id:
        share = by_id[name]
        while share.within in by_id:
            share = by_id[share.within]
        size = sizes.get(share.within, share.limit_bytes)
        if isinstance(size, int):
            sizes[name] = size
    return sizes


def bound_headroom(device: Device, bound: int) -> Device:
    """Reduce both bounds of the headroom to what a further limit leaves."""
    most, certain = device.headroom_after_reclaim_bytes, device.headroom_bytes
    if isinstance(most, Absent) or most <= bound:
        return device
    least = certain if isinstance(certain, Absent) else min(certain, bound)
    return replace(device, headroom_after_reclaim_bytes=bound, headroom_bytes=least)


class HeadroomCalculator:
    """Computes the headroom of devices along the chain from a share to its pool."""

    def __init__(self, pools: Sequence[Pool], shares: Sequence[Share]) -> None:
        self._pools = {pool.id: pool for pool in pools}
        self._shares = {share.id: share for share in shares}

    def with_headroom(self, device: Device) -> Device:
        """Add the memory that the device can allocate now, and that after reclaim of page cache.

        That is the largest of several chains into one pool, summed over the pools. Swap never counts.
        """
        if (
            isinstance(device.headroom_after_reclaim_bytes, Absent)
            and device.headroom_after_reclaim_bytes is not Absent.NOT_AVAILABLE
        ):
            return replace(device, headroom_bytes=device.headroom_after_reclaim_bytes)
        if device.headroom_after_reclaim_bytes is not Absent.NOT_AVAILABLE or not device.allocates_from:
            return device
        widest: dict[str, Bytes] = {}
        widest_certain: dict[str, Bytes] = {}
        for place in device.allocates_from:
            pool, left, certain = self._left(place, device)
            _keep_wider(widest, pool, left)
            _keep_wider(widest_certain, pool, certain)
        return replace(
            device,
            headroom_after_reclaim_bytes=sum_figures(widest.values()),
            headroom_bytes=sum_figures(widest_certain.values()),
        )

    def _left(self, place: str, device: Device) -> tuple[str, Bytes, Bytes]:
        """Return the pool at the end of a chain, and the smallest remainder along it, with and without reclaim."""
        bounds: list[Bytes] = []
        is_set_apart = False
        while place in self._shares:
            share = self._shares[place]
            is_set_apart |= share.kind is ShareKind.MIG_INSTANCE
            if share.limit_bytes is not Absent.NOT_SUPPORTED:
                bounds.append(share.left_bytes)
            place = share.within
        unknown = [bound for bound in bounds if isinstance(bound, Absent)]
        if unknown:
            return place, unknown[0], unknown[0]
        if place not in self._pools:  # inside a memory partition only the limit is known
            left = _least(*bounds) if bounds else Absent.NOT_AVAILABLE
            return place, left, left
        left, free = _left_in(self._pools[place], device, bool(bounds))
        if isinstance(left, Absent) and not is_set_apart:  # a limit alone is no memory, an instance is
            return place, left, left
        is_unknown = isinstance(free, Absent) and _holds_cache(self._pools[place])
        return place, _least(left, *bounds), free if is_unknown else _least(free, left, *bounds)


def _keep_wider(widest: dict[str, Bytes], pool: str, left: Bytes) -> None:
    before = widest.get(pool)
    if not isinstance(before, int) or (isinstance(left, int) and left > before):
        widest[pool] = left


def _left_in(pool: Pool, device: Device, bounded: bool) -> tuple[Bytes, Bytes]:
    """Return what is left in a pool, with and without reclaim.

    CUDA uses only huge pages if they are configured (NVIDIA's guidance for GB10). They hold no cache.
    """
    if pool.kind is PoolKind.SYSTEM_RAM and pool.set_aside_bytes and device.vendor == "NVIDIA" and not bounded:
        return pool.set_aside_free_bytes, pool.set_aside_free_bytes
    left, free = pool.available_bytes, pool.free_bytes
    if isinstance(left, Absent) or not _holds_cache(pool):
        return left, left
    return left, free


def _holds_cache(pool: Pool) -> bool:
    """Return True if the kernel keeps page cache there: System RAM, and HBM that is a NUMA node (GH200)."""
    return pool.kind is PoolKind.SYSTEM_RAM or pool.free_bytes is not Absent.NOT_SUPPORTED


def _least(*bounds: Bytes) -> Bytes:
    """Return the smallest known bound. If none is known, return the first reason."""
    return min([bound for bound in bounds if isinstance(bound, int)], default=bounds[0])


@memoize
def with_device_bytes(
    processes: tuple[Process, ...], *device_memories: DeviceMemory | NpuMemory
) -> tuple[Process, ...]:
    """Return the processes with their device memory."""
    held: dict[int, dict[str, Bytes]] = {}
    most: dict[int, dict[str, int]] = {}
    for device_memory in device_memories:
        for pid in device_memory.unplaced:
            held.setdefault(pid, {})
        for pid, places in device_memory.held.items():
            held.setdefault(pid, {}).update(places)
        for pid, bounds in device_memory.held_most.items():
            most.setdefault(pid, {}).update(bounds)
    unsure = {
        share.id
        for device_memory in device_memories
        for share in device_memory.shares
        if share.kind in PERHAPS_IN_RSS
    }
    unplaced = frozenset().union(*[device_memory.unplaced for device_memory in device_memories])
    return tuple(
        _with_device_bytes(process, held[process.pid], most.get(process.pid, {}), unsure, process.pid in unplaced)
        if process.pid in held
        else process
        for process in processes
    )


def _with_device_bytes(
    process: Process, held: Mapping[str, Bytes], most: Mapping[str, int], unsure: set[str], is_more: bool
) -> Process:
    """Add device memory that is known to be outside the resident set, as cudaMalloc's is, to the footprint.

    If that is unknown, the footprint is a range: from full overlap with the resident set to none. It is a range as
    well if `most` is more than `held`: then the process's clients may share buffers. `is_more`: it holds further
    memory, of which only that is known.
    """
    rss = process.rss_bytes
    if isinstance(rss, Absent):
        return replace(process, device_bytes=held)
    beyond = sum(size for place, size in held.items() if isinstance(size, int) and place not in unsure)
    perhaps = sum(size for place, size in held.items() if isinstance(size, int) and place in unsure)
    whole = sum_figures(
        [
            rss,
            *(
                figure if isinstance(figure, Absent) else max(figure, most.get(place, 0))
                for place, figure in held.items()
            ),
            *([Absent.NOT_AVAILABLE] if is_more else []),
        ]
    )
    if isinstance(whole, int) and whole == rss + beyond:
        return replace(process, device_bytes=held, footprint_bytes=whole, footprint_basis="rss + device")
    return replace(
        process,
        device_bytes=held,
        footprint_bytes=whole if isinstance(whole, Absent) else Absent.NOT_SUPPORTED,
        footprint_basis=_name_range(whole, perhaps),
        footprint_range=(max(rss, perhaps) + beyond, whole),
    )


def _name_range(whole: Bytes, perhaps: int) -> str:
    if isinstance(whole, Absent):
        return "rss + device, unknown"
    return "rss + device, perhaps overlapping" if perhaps else "rss + device, perhaps shared"


@memoize
def with_architecture(machine: Machine | None, *device_memories: DeviceMemory) -> Machine:
    """Set the machine's architecture. Devices of unknown architecture (lost ones, for example) count only if
    there are no others."""
    machine = machine or Machine()
    known = [
        one for one in device_memories if one.device.architecture is not Architecture.UNKNOWN
    ] or device_memories
    kinds = {device_memory.device.architecture.value for device_memory in known}
    if len(kinds) > 1:
        return replace(machine, architecture="mixed", explanation=MIXED)
    explanations = dict.fromkeys(device_memory.explanation for device_memory in known)
    return replace(machine, architecture=kinds.pop(), explanation=" ".join(explanations))
