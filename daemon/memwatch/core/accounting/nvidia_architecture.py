"""Architecture of NVIDIA GPUs: relation of their memory to System RAM, by observations and never by name alone.

Inside a memory partition the driver's total is a cgroup's limit, and not the size of the card.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.device_memory import DeviceMemory
from memwatch.core.drivers.nvml.errors import Code, name_of
from memwatch.core.drivers.nvml.records import GpuMemory, GpuReading
from memwatch.core.linux.dmem import DmemReading, is_within, region_address
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Architecture, Quality, Share, ShareKind
from memwatch.core.snapshot import Node
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


# GPUs on the same chip as the CPU. A name confirms observations; it decides nothing alone.
INTEGRATED_NAMES = ("GB10", "THOR", "ORIN", "(NVGPU)", "N1X")
# If the driver reports the machine's memory, it differs by rounding and by what firmware reserves.
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
