"""NVIDIA's GPUs: a Tegra's own GPU first, then each GPU that NVML reports, also from inside a memory partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.accounting import tegra
from memwatch.core.accounting.device_memory import DeviceMemory
from memwatch.core.accounting.nvidia_architecture import decide_architecture, is_integrated
from memwatch.core.accounting.nvidia_gpu import GpuContext, absent_gpu, build_device_memory
from memwatch.core.drivers.nvml.records import GpuMemory, GpuReading, NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.linux.dmem import DmemReading, is_within, region_address
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Architecture, Pool, Quality, Share, ShareKind, find_system_ram, known_or
from memwatch.core.snapshot import Machine, Node
from memwatch.core.units import size


def build_device_memories(found: Findings, first: int) -> Sequence[DeviceMemory]:
    """Return the device memory of all NVIDIA GPUs: a Tegra's own GPU before the GPUs plugged into it."""
    if found.tegra is None:
        return build_listed_device_memories(found, first)
    own = tegra.own_gpu(found.nvml)
    others = build_listed_device_memories(_without(found, own), first + 1)
    number = f" {first}" if others else ""
    place = GpuContext(f"gpu{first}", number, find_system_ram(found.pools), found.machine or Machine())
    return [tegra.build_device_memory(found, found.tegra, own, place), *others]


def _without(found: Findings, own: GpuReading | None) -> Findings:
    if found.nvml is None or own is None:
        return found
    others = tuple(gpu for gpu in found.nvml.gpus if gpu is not own)
    missing = tuple(gpu for gpu in found.nvml.missing if gpu.uuid != own.uuid)
    return replace(found, nvml=replace(found.nvml, gpus=others, missing=missing))


class CachedDeviceMemory(NamedTuple):
    """The device memories of the last call, and the inputs they were built from."""

    reading: NvmlReading | None = None
    machine: Machine | None = None
    dmem: DmemReading | None = None
    nodes: tuple[Node, ...] = ()
    figures: tuple[int | None, ...] = ()
    device_memories: Sequence[DeviceMemory] = ()

    def matches(self, found: Findings, figures: tuple[int | None, ...]) -> bool:
        """Check if these inputs give the same result."""
        same = self.reading is found.nvml and self.machine is found.machine and self.nodes is found.nodes
        return same and self.dmem is found.dmem and self.figures == figures


# Driver readings are mostly unchanged, and eight GPUs take a fifth of a tick.
_cached = CachedDeviceMemory()


def build_listed_device_memories(found: Findings, first: int) -> Sequence[DeviceMemory]:
    """Return the GPUs that NVML reports. GPUs that NVML stopped reporting stay, without figures."""
    global _cached
    if found.nvml is None:
        return ()
    ram, stale = find_system_ram(found.pools), "nvml" in found.stale
    figures = (first, stale, ram.size_bytes if ram else None)
    cached = _cached  # another thread may replace it: the library reads the machine in any of a program's threads
    if cached.matches(found, figures):
        return cached.device_memories
    device_memories = _build_device_memories(found, found.nvml, ram, first)
    if stale:
        device_memories = [device_memory.as_stale() for device_memory in device_memories]
    if not any(device_memory.device.architecture is Architecture.UNIFIED for device_memory in device_memories):
        # A unified device contains the free System RAM, which differs each time.
        _cached = CachedDeviceMemory(found.nvml, found.machine, found.dmem, found.nodes, figures, device_memories)
    return device_memories


def _build_device_memories(
    found: Findings, reading: NvmlReading, ram: Pool | None, first: int
) -> list[DeviceMemory]:
    machine, size = found.machine or Machine(), ram.size_bytes if ram else None
    gpus = in_stable_order([*reading.gpus, *(absent_gpu(gpu) for gpu in reading.missing)])
    numbers = [f"gpu{at}" for at in range(first, first + len(gpus))]
    contexts = [
        GpuContext(name, "" if len(gpus) == 1 else f" {name.removeprefix('gpu')}", ram, machine) for name in numbers
    ]
    built: list[DeviceMemory] = []
    nodes = found.nodes
    for gpu, place in zip(gpus, contexts, strict=True):
        built.append(_build_one(gpu, place, replace(found, nodes=nodes), reading, size))
        nodes = _without_node(nodes, built[-1].node)
    return built


def _without_node(nodes: tuple[Node, ...], taken: Node | None) -> tuple[Node, ...]:
    """Make the size of a node unknown that is a GPU's memory already: it cannot be that of another one."""
    if taken is None:
        return nodes
    return tuple(replace(node, size_bytes=Absent.INCONSISTENT) if node is taken else node for node in nodes)


def _build_one(
    gpu: GpuReading, place: GpuContext, found: Findings, reading: NvmlReading, ram_bytes: int | None
) -> DeviceMemory:
    limit = find_partition(gpu, found.dmem)
    # Inside a partition the total of an integrated GPU is a limit as well, and not a carve-out.
    seen = gpu if limit is None or not is_integrated(gpu) else replace(gpu, memory=Absent.NOT_SUPPORTED)
    verdict = decide_architecture(seen, ram_bytes, found.nodes, place.machine.in_container)
    built = build_device_memory(seen, place, verdict, reading)
    built = built if limit is None else with_partition(built, gpu, place.number, limit)
    return built if gpu.asleep is None else built.as_suspended()


def in_stable_order(gpus: Sequence[GpuReading]) -> list[GpuReading]:
    """Sort by PCI address: NVML's order may change with a reboot, ids must not."""
    return sorted(gpus, key=lambda gpu: (str(gpu.pci), gpu.index))


# The driver subtracts what it reserves, and limits are whole pages.
SAME_SIZE = 0.02
EXPLANATION = (
    "memwatchd runs inside a GPU memory partition: the driver reports the limit of this cgroup ({}) as the GPU's "
    "memory. The size of the card is not available here, so it is in no sum."
)


def find_partition(gpu: GpuReading, dmem: DmemReading | None) -> int | None:
    """Return the limit of memwatchd's own cgroup if the driver reports that as the GPU's memory.

    A total above the limit is the card's: that driver does not adjust it. A total equal to a known card is the
    card's. MIG figures are never adjusted.
    """
    if gpu.instances or gpu.mig_enabled is True or not isinstance(gpu.memory, GpuMemory):
        return None
    total, limits = gpu.memory.total_bytes, [*_kernel_limits(gpu, dmem), *_driver_limits(gpu)]
    if not limits or not total or total > min(limits) * (1 + SAME_SIZE):
        return None
    card = _capacity(gpu, dmem)
    return None if card is not None and total >= card * (1 - SAME_SIZE) else min(limits)


def _kernel_limits(gpu: GpuReading, dmem: DmemReading | None) -> Iterator[int]:
    for group in dmem.groups if dmem else ():
        if dmem and is_within(dmem.own, group.cgroup):
            for one in group.regions:
                if one.limit_bytes and _is_of(one.region, gpu):
                    yield one.limit_bytes


def _driver_limits(gpu: GpuReading) -> Iterator[int]:
    limits = known_or(gpu.limits, ())
    yield from (one.hard_bytes for one in limits if one.own and one.hard_bytes)


def _capacity(gpu: GpuReading, dmem: DmemReading | None) -> int | None:
    """Return the card's size as the root cgroup has it."""
    capacity = dmem.capacity_bytes if dmem else {}
    return next((whole for region, whole in capacity.items() if _is_of(region, gpu)), None)


def _is_of(region: str, gpu: GpuReading) -> bool:
    address = pci_numbers(region_address(region))
    return address is not None and address == pci_numbers(gpu.pci)


def with_partition(found: DeviceMemory, gpu: GpuReading, number: str, limit: int) -> DeviceMemory:
    """Replace the pool that the driver's total would be by the limit, which is within a card of unknown size."""
    explanation = EXPLANATION.format(size(limit))
    device = replace(found.device, notes=(explanation, *found.device.notes))
    if not found.pools:  # unified: the CUDA Pool is limited
        shares = tuple(
            replace(share, limit_bytes=limit) if share.kind is ShareKind.CUDA_POOL else share
            for share in found.shares
        )
        return replace(found, device=device, shares=shares, explanation=f"{found.explanation} {explanation}")
    if found.node is not None:
        return found
    share = _build_share(found, gpu, number, limit)
    return replace(
        found,
        device=replace(device, allocates_from=(share.id,)),
        explanation=explanation,
        pools=(),
        shares=(share,),
        held={pid: dict.fromkeys([share.id], next(iter(at.values()))) for pid, at in found.held.items()},
    )


def _build_share(found: DeviceMemory, gpu: GpuReading, number: str, limit: int) -> Share:
    memory = gpu.memory
    return Share(
        id=f"{found.device.id}.limit",
        kind=ShareKind.GPU_LIMIT,
        label=f"GPU{number} memory limit",
        within=found.device.id,
        used_bytes=memory.total_bytes - memory.free_bytes if isinstance(memory, GpuMemory) else memory,
        limit_bytes=memory.total_bytes if isinstance(memory, GpuMemory) else limit,
        source=found.pools[0].source,
        quality=Quality.MEASURED,
        device=found.device.id,
        note="the size of the card is not available here",
    )
