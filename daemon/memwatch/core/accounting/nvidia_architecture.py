"""Architecture of NVIDIA GPUs: relation of their memory to System RAM, by observations and never by name alone."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from memwatch.core.drivers.nvml.records import Code, GpuMemory, GpuReading, name_of
from memwatch.core.model import Absent, Architecture
from memwatch.core.snapshot import Node
from memwatch.core.units import size

# GPUs on the same chip as the CPU. A name confirms observations; it decides nothing alone.
INTEGRATED_NAMES = ("GB10", "THOR", "ORIN", "(NVGPU)", "N1X")
# If the driver reports the machine's memory, it differs by rounding and by what firmware reserves.
SAME_SIZE = 0.02
# A node of a GPU's memory lacks what the driver and ECC keep: on GH200, 95.0 GiB of 95.6.
SAME_NODE = 0.05


class ArchitectureDecision(Struct, frozen=True):
    """Architecture of one device, and the observations that decided it. `node` is its NUMA node, if any."""

    architecture: Architecture
    evidence: tuple[str, ...]
    node: Node | None = None


def decide_architecture(
    gpu: GpuReading, ram_bytes: int | None, nodes: Collection[Node], contained: bool
) -> ArchitectureDecision:
    """Decide by the driver's answers. A failing card is `unknown`, never unified.

    Memory that is a NUMA node stays one while the driver's own figure is missing or wrong: MemTotal contains it.
    """
    memory, node = gpu.memory, _find_node(gpu, nodes)
    if node is not None:
        text = f"NVML reports NUMA node {node.id}, which has memory and no CPUs"
        return ArchitectureDecision(Architecture.COHERENT, (text,), node)
    if isinstance(memory, GpuMemory) and memory.total_bytes > 0:
        return _with_memory(gpu, memory, ram_bytes, nodes)
    if isinstance(memory, GpuMemory):
        return _without_memory(gpu, "NVML memory info reports a total of 0", contained)
    if memory is Absent.NOT_SUPPORTED:
        return _without_memory(gpu, "NVML memory info is not supported", contained)
    if memory is Absent.SUSPENDED:
        text = "it has been suspended since memwatchd started, so its driver has not been asked"
        return ArchitectureDecision(Architecture.UNKNOWN, (text,))
    if gpu.instances:
        return ArchitectureDecision(
            Architecture.DISCRETE, (f"NVML memory info is {memory.value}", "MIG instances have their own memory")
        )
    codes = ", ".join(f"{call} returned {name_of(code)}" for call, code in gpu.codes.items())
    return ArchitectureDecision(
        Architecture.UNKNOWN, tuple(filter(None, (f"NVML memory info is {memory.value}", codes)))
    )


def _with_memory(
    gpu: GpuReading, memory: GpuMemory, ram_bytes: int | None, nodes: Collection[Node]
) -> ArchitectureDecision:
    unknown = _why_node_unknown(gpu, memory, ram_bytes, nodes)
    if unknown:
        return ArchitectureDecision(Architecture.UNKNOWN, (unknown,))
    if is_integrated(gpu):
        if ram_bytes is None:
            text = f"NVML memory info reports {size(memory.total_bytes)}, and the size of System RAM is not known"
            return ArchitectureDecision(Architecture.UNKNOWN, (_named(gpu), text))
        if abs(memory.total_bytes - ram_bytes) <= SAME_SIZE * ram_bytes:
            return ArchitectureDecision(
                Architecture.UNIFIED, (_named(gpu), "NVML memory info reports the size of System RAM")
            )
        text = f"NVML memory info reports {size(memory.total_bytes)}, which is not the size of System RAM"
        return ArchitectureDecision(Architecture.CARVEOUT, (_named(gpu), text))
    evidence = ["NVML memory info works", _why_no_node(gpu)]
    if gpu.addressing_mode == "ats":
        evidence.append("it shares page tables with the CPU (ATS), and its memory is not in MemTotal")
    return ArchitectureDecision(Architecture.DISCRETE, tuple(evidence))


def _without_memory(gpu: GpuReading, observed: str, contained: bool) -> ArchitectureDecision:
    """No memory figure: unified if the rest agrees. In a container it can also mean "not permitted"."""
    evidence = [observed]
    if gpu.bar1_bytes is Absent.NOT_SUPPORTED:
        evidence.append("BAR1 is not supported")
    confirmed = is_integrated(gpu) or gpu.addressing_mode == "ats"
    if is_integrated(gpu):
        evidence.append(_named(gpu))
    if gpu.addressing_mode == "ats":
        evidence.append("it shares page tables with the CPU (ATS)")
    if confirmed or (gpu.bar1_bytes is Absent.NOT_SUPPORTED and not contained):
        return ArchitectureDecision(Architecture.UNIFIED, tuple(evidence))
    if contained:
        evidence.append("no other observation confirms it, and a container may restrict access")
    return ArchitectureDecision(Architecture.UNKNOWN, tuple(evidence))


def _find_node(gpu: GpuReading, nodes: Collection[Node]) -> Node | None:
    """Return the node that NVML reports, if it has memory and no CPUs."""
    if isinstance(gpu.numa_node, Absent) or gpu.numa_node < 0:
        return None
    for node in nodes:
        if node.id == gpu.numa_node and isinstance(node.size_bytes, int) and node.size_bytes and not node.has_cpus:
            return node
    return None


def _why_node_unknown(
    gpu: GpuReading, memory: GpuMemory, ram_bytes: int | None, nodes: Collection[Node]
) -> str | None:
    """Return why MemTotal may contain the GPU's memory, None if it does not.

    It contains the memory of a node that is online. A node that the kernel's files do not list, or without memory,
    is not. Files that could not be read are no evidence: only buddyinfo has nodes then, without their sizes.
    """
    if isinstance(gpu.numa_node, int) and gpu.numa_node >= 0:
        node = next((node for node in nodes if node.id == gpu.numa_node), None)
        if _is_size_unknown(node) if node else not any(isinstance(one.size_bytes, int) for one in nodes):
            seen = "whose memory is not visible here, or is that of another GPU"
            return f"NVML reports NUMA node {gpu.numa_node}, {seen}"
        return None
    if _is_node_denied(gpu) or ram_bytes is None or ram_bytes <= memory.total_bytes:
        return None
    suspect = next((node for node in nodes if _may_be_memory_of(node, memory, len(nodes))), None)
    if suspect is None:
        return None
    return f"NVML could not tell its NUMA node ({_code_of_node(gpu)}), and node {suspect.id} may be its memory"


def _is_size_unknown(node: Node) -> bool:
    return isinstance(node.size_bytes, Absent) or isinstance(node.has_cpus, Absent)


def _may_be_memory_of(node: Node, memory: GpuMemory, count: int) -> bool:
    """Return True for a node without CPUs and of the GPU's size, or of several nodes for one that was not read."""
    if isinstance(node.size_bytes, Absent) or isinstance(node.has_cpus, Absent):
        return count > 1
    return not node.has_cpus and abs(node.size_bytes - memory.total_bytes) <= SAME_NODE * memory.total_bytes


def _is_node_denied(gpu: GpuReading) -> bool:
    """Return True if the driver says that the memory is no NUMA node. An older driver cannot: it lacks the call."""
    return isinstance(gpu.numa_node, int) or gpu.codes.get("numa_node", Code.NOT_SUPPORTED) == Code.NOT_SUPPORTED


def _code_of_node(gpu: GpuReading) -> str:
    return name_of(gpu.codes.get("numa_node", Code.UNKNOWN))


def _why_no_node(gpu: GpuReading) -> str:
    if isinstance(gpu.numa_node, int) and gpu.numa_node >= 0:
        return f"its NUMA node {gpu.numa_node} is not online"
    return "its memory is not a NUMA node" if _is_node_denied(gpu) else "no visible NUMA node has its size"


def is_integrated(gpu: GpuReading) -> bool:
    """Check the name against those of integrated GPUs."""
    return isinstance(gpu.name, str) and any(name in gpu.name.upper() for name in INTEGRATED_NAMES)


def _named(gpu: GpuReading) -> str:
    return f"the name matches an integrated GPU ({gpu.name})"
