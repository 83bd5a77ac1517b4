"""NVIDIA's GPUs: a Tegra's own GPU first, then each GPU that NVML reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.accounting import tegra
from memwatch.core.accounting.device_memory import DeviceMemory
from memwatch.core.accounting.nvidia_architecture import decide_architecture, is_integrated
from memwatch.core.accounting.nvidia_gpu import GpuContext, absent_gpu, build_device_memory
from memwatch.core.accounting.nvidia_partition import find_partition, with_partition
from memwatch.core.drivers.nvml.records import GpuReading, NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.linux.dmem import DmemReading
from memwatch.core.model import Absent, Architecture, Pool, find_system_ram
from memwatch.core.snapshot import Machine, Node


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
