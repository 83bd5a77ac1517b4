"""How an NVIDIA GPU's memory relates to the machine's, from what was observed and never from a brand alone."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from memwatch.drivers.nvml.records import GpuMemory, GpuReading
from memwatch.model import Absent, Architecture
from memwatch.snapshot import Node
from memwatch.units import size

# GPUs that are part of a chip with the processors. A name confirms what was observed; alone it decides nothing.
INTEGRATED_NAMES = ("GB10", "THOR", "ORIN", "(NVGPU)", "N1X")
# A driver that answers with the machine's own memory is off by rounding and by what firmware keeps.
SAME_SIZE = 0.02


class ArchitectureDecision(Struct, frozen=True):
    """The architecture of one device, and the observations that decided it. `node` is its NUMA node, if any."""

    architecture: Architecture
    evidence: tuple[str, ...]
    node: Node | None = None


def decide_architecture(
    gpu: GpuReading, ram_bytes: int | None, nodes: Iterable[Node], contained: bool
) -> ArchitectureDecision:
    """Decide by what the driver answered. A failing card is `unknown`, and never system RAM."""
    memory = gpu.memory
    if isinstance(memory, GpuMemory) and memory.total_bytes > 0:
        return _with_memory(gpu, memory, ram_bytes, nodes)
    if isinstance(memory, GpuMemory):
        return _without_memory(gpu, "memory info answers with a total of 0", contained)
    if memory is Absent.NOT_SUPPORTED:
        return _without_memory(gpu, "memory info is not supported", contained)
    if gpu.instances:
        return ArchitectureDecision(
            Architecture.DISCRETE, (f"memory info is {memory.value}", "MIG instances have memory of their own")
        )
    codes = ", ".join(f"{call} answered {code}" for call, code in gpu.codes.items())
    return ArchitectureDecision(
        Architecture.UNKNOWN, tuple(filter(None, (f"memory info is {memory.value}", codes)))
    )


def _with_memory(
    gpu: GpuReading, memory: GpuMemory, ram_bytes: int | None, nodes: Iterable[Node]
) -> ArchitectureDecision:
    node = _find_node(gpu, nodes)
    if node is not None:
        text = f"NVML names NUMA node {node.id}, which has memory and no processors"
        return ArchitectureDecision(Architecture.COHERENT, (text,), node)
    if is_integrated(gpu):
        if ram_bytes and abs(memory.total_bytes - ram_bytes) <= SAME_SIZE * ram_bytes:
            return ArchitectureDecision(
                Architecture.UNIFIED, (_named(gpu), "memory info answers with the machine's own memory")
            )
        text = f"memory info answers with {size(memory.total_bytes)}, which is not the machine's memory"
        return ArchitectureDecision(Architecture.CARVEOUT, (_named(gpu), text))
    evidence = ["memory info answers", "no NUMA node holds its memory"]
    if gpu.addressing_mode == "ats":
        evidence.append("it shares page tables with the processors (ATS), and its memory is not in MemTotal")
    return ArchitectureDecision(Architecture.DISCRETE, tuple(evidence))


def _without_memory(gpu: GpuReading, observed: str, contained: bool) -> ArchitectureDecision:
    """No figure for memory: unified where the rest agrees; in a container the same can mean "not allowed"."""
    evidence = [observed]
    if gpu.bar1_bytes is Absent.NOT_SUPPORTED:
        evidence.append("BAR1 is not supported")
    confirmed = is_integrated(gpu) or gpu.addressing_mode == "ats"
    if is_integrated(gpu):
        evidence.append(_named(gpu))
    if gpu.addressing_mode == "ats":
        evidence.append("it shares page tables with the processors (ATS)")
    if confirmed or (gpu.bar1_bytes is Absent.NOT_SUPPORTED and not contained):
        return ArchitectureDecision(Architecture.UNIFIED, tuple(evidence))
    if contained:
        evidence.append("nothing confirms it, and a container may be kept from asking")
    return ArchitectureDecision(Architecture.UNKNOWN, tuple(evidence))


def _find_node(gpu: GpuReading, nodes: Iterable[Node]) -> Node | None:
    """The node that NVML names, if that node has memory and no processors."""
    if isinstance(gpu.numa_node, Absent) or gpu.numa_node < 0:
        return None
    for node in nodes:
        if node.id == gpu.numa_node and isinstance(node.size_bytes, int) and node.size_bytes and not node.has_cpus:
            return node
    return None


def is_integrated(gpu: GpuReading) -> bool:
    """Whether its name is one of a GPU that is part of a chip."""
    return isinstance(gpu.name, str) and any(name in gpu.name.upper() for name in INTEGRATED_NAMES)


def _named(gpu: GpuReading) -> str:
    return f"it is called {gpu.name}"
