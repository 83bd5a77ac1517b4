"""A GPU seen from inside a memory partition: the driver's total is a cgroup's limit there, not the card's size."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from memwatch.core.accounting.device_memory import DeviceMemory
from memwatch.core.drivers.nvml.records import GpuMemory, GpuReading
from memwatch.core.linux.dmem import DmemReading, is_within, region_address
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Quality, Share, ShareKind
from memwatch.core.units import size

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
    limits = () if isinstance(gpu.limits, Absent) else gpu.limits
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
