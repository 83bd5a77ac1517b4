"""A Tegra's integrated GPU: NvMap's part of System RAM, load from tegrastats, and NVML where it reports more.

NVML on Jetsons up to Orin is a stub that reports only the GPU's name; on Thor, NvMap has no GPU memory. The chip
has one GPU either way, so there is one device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from memwatch.core.accounting import nvidia_gpu
from memwatch.core.accounting.device_memory import DeviceMemory, without_figures
from memwatch.core.accounting.nvidia_architecture import ArchitectureDecision, decide_architecture, is_integrated
from memwatch.core.drivers.nvml.records import GpuReading, NvmlReading
from memwatch.core.drivers.tegra.nvmap import KERNEL_PID
from memwatch.core.drivers.tegra.records import NvMapClient, NvMapReading, TegraReading
from memwatch.core.drivers.tegra.tegrastats import find_rail, read_vitals
from memwatch.core.findings import Findings
from memwatch.core.linux.gpu_presence import SOME_TEGRA
from memwatch.core.model import (
    RAM,
    Absent,
    Architecture,
    Bytes,
    Device,
    ProcessList,
    Quality,
    Share,
    ShareKind,
    Vitals,
)
from memwatch.core.snapshot import Machine, Tegrastats

EXPLANATION = "GPU memory is part of System RAM on this board: CPU and GPU share this memory."
NAMES = {
    "tegra210": "NVIDIA Tegra X1",
    "tegra186": "NVIDIA Tegra X2",
    "tegra194": "NVIDIA Xavier",
    "tegra234": "NVIDIA Orin",
    "tegra264": "NVIDIA Thor",
}
UNKNOWN_CHIP = "the device tree with the chip's name is not visible here; the GPU of every Tegra shares System RAM"
NVMAPS = ("meminfo:NvMapMemUsed", "nvmap:total")
EVERY_BUFFER = "all NvMap buffers (including camera, codec and display)"
OVERLAP = "Shared buffers count for each process, so the sum of the processes exceeds the CUDA Pool."
OF_THE_HOST = "NvMap lists the host's PIDs: in this container, its entries cannot be assigned to processes."


V = TypeVar("V")
NvMapClients = tuple[NvMapClient, ...] | Absent


class SourcedBytes(NamedTuple):
    """Memory of the GPU, and the source of the figure."""

    bytes: Bytes
    source: str


def own_gpu(nvml: NvmlReading | None) -> GpuReading | None:
    """Return the chip's own GPU among NVML's, even after NVML stopped listing it."""
    if nvml is None:
        return None
    gpus = [*nvml.gpus, *map(nvidia_gpu.absent_gpu, nvml.missing)]
    return next((gpu for gpu in gpus if is_integrated(gpu) or gpu.memory is Absent.NOT_SUPPORTED), None)


def build_device_memory(
    found: Findings, tegra: TegraReading, own: GpuReading | None, place: nvidia_gpu.GpuContext
) -> DeviceMemory:
    """Use NvMap's figure if the kernel has one, otherwise NVML's."""
    verdict = _decide_architecture(found, tegra, own, place)
    figure = select_figure(found, tegra)
    if own is None or found.nvml is None:
        device_memory = _without_nvml(verdict, place)
    else:
        device_memory = nvidia_gpu.build_device_memory(own, place, verdict, found.nvml)
    if figure.bytes is not Absent.NOT_SUPPORTED:
        device_memory = _with_nvmap(device_memory, found, figure, place)
    elif "nvml" in found.stale:
        device_memory = device_memory.as_stale()
    device = replace(
        device_memory.device,
        name=choose_name(tegra, own),
        busy_ratio=first_known(_busy(found, "gr3d"), device_memory.device.busy_ratio),
        memory_busy_ratio=_busy(found, "emc"),
        details={**device_memory.device.details, **_rail_of(found)},
    ).with_vitals(_vitals(found, device_memory.device))
    return replace(device_memory, device=device, explanation=EXPLANATION)


def choose_name(tegra: TegraReading, own: GpuReading | None) -> str:
    """Return the chip's name, else that of NVML's stub, such as "Orin (nvgpu)"."""
    if tegra.soc != SOME_TEGRA:
        return NAMES.get(tegra.soc, f"NVIDIA {tegra.soc}")
    name = own.name if own and isinstance(own.name, str) else "Tegra"
    return name if name.startswith("NVIDIA") else f"NVIDIA {name}"


def _decide_architecture(
    found: Findings, tegra: TegraReading, own: GpuReading | None, place: nvidia_gpu.GpuContext
) -> ArchitectureDecision:
    """The chip decides, regardless of the driver's answers: there is no other memory."""
    chip = f"the chip is {tegra.soc}, whose GPU shares System RAM"
    evidence: tuple[str, ...] = (tegra.sign, UNKNOWN_CHIP) if tegra.sign else (chip,)
    if own is not None:
        size = place.ram.size_bytes if place.ram else None
        evidence += decide_architecture(own, size, found.nodes, place.machine.in_container).evidence
    return ArchitectureDecision(Architecture.UNIFIED, evidence)


def _without_nvml(verdict: ArchitectureDecision, place: nvidia_gpu.GpuContext) -> DeviceMemory:
    device = Device(
        id=place.name,
        vendor="NVIDIA",
        name="",
        architecture=verdict.architecture,
        allocates_from=(RAM,) if place.ram else (),
        evidence=verdict.evidence,
        process_list=Absent.NOT_AVAILABLE,
        api_free_bytes={"cuda": place.ram.free_bytes} if place.ram else {},
    )
    shares = (cuda_share(SourcedBytes(Absent.NOT_AVAILABLE, "nvml:processes"), place),) if place.ram else ()
    return DeviceMemory(device, EXPLANATION, shares=shares, beyond_meminfo=Absent.NOT_AVAILABLE)


def select_figure(found: Findings, tegra: TegraReading) -> SourcedBytes:
    """Return the GPU's memory. Both NvMap figures are exact; the one readable without root is also newer."""
    if tegra.gpu_bytes is not Absent.NOT_SUPPORTED:
        stale = "tegra" in found.stale
        return SourcedBytes(Absent.STALE if stale else tegra.gpu_bytes, "meminfo:NvMapMemUsed")
    if found.nvmap is not None:
        return SourcedBytes(Absent.STALE if "nvmap" in found.stale else found.nvmap.total_bytes, "nvmap:total")
    return SourcedBytes(Absent.NOT_SUPPORTED, "")


def _with_nvmap(
    device_memory: DeviceMemory, found: Findings, figure: SourcedBytes, place: nvidia_gpu.GpuContext
) -> DeviceMemory:
    clients = select_clients(found)
    seen = place.machine.sees_all_processes
    listed: ProcessList | Absent = clients if isinstance(clients, Absent) else "complete" if seen else "partial"
    share = nvidia_gpu.cuda_id(place.name)
    notes = build_notes(found.nvmap, clients, figure.bytes)
    device = replace(
        device_memory.device,
        process_list=listed,
        notes=notes if seen or listed != "partial" else (*notes, OF_THE_HOST),
    )
    return replace(
        device_memory,
        device=device,
        shares=(cuda_share(figure, place),) if place.ram else (),
        held=_held(found.nvmap, clients, share) if place.ram and seen else {},
        beyond_meminfo=figure.bytes,
    )


def select_clients(found: Findings) -> NvMapClients:
    if found.nvmap is None:
        return Absent.NOT_AVAILABLE
    return Absent.STALE if "nvmap" in found.stale else found.nvmap.clients


def _held(nvmap: NvMapReading | None, clients: NvMapClients, share: str) -> Mapping[int, Mapping[str, Bytes]]:
    """Return the memory of processes. Those that were listed last hold an unknown amount while that is stale."""
    if not isinstance(clients, Absent):
        return held_by_pid(clients, share)
    if clients is not Absent.STALE or nvmap is None or isinstance(nvmap.clients, Absent):
        return {}
    return without_figures(held_by_pid(nvmap.clients, share), clients)


def held_by_pid(clients: Iterable[NvMapClient], share: str) -> Mapping[int, Mapping[str, Bytes]]:
    """Sum by process: one may open NvMap several times. The kernel's own clients are not processes."""
    held: Counter[int] = Counter()
    for client in clients:
        if client.pid != KERNEL_PID:
            held[client.pid] += client.used_bytes
    return {pid: {share: size} for pid, size in held.items()}


def build_notes(nvmap: NvMapReading | None, clients: NvMapClients, total: Bytes) -> tuple[str, ...]:
    notes = [nvmap.would_add] if nvmap and nvmap.would_add else []
    if isinstance(total, int) and not isinstance(clients, Absent):
        notes += [OVERLAP] if sum(client.used_bytes for client in clients) > total else []
    return tuple(notes)


def cuda_share(figure: SourcedBytes, place: nvidia_gpu.GpuContext) -> Share:
    return Share(
        id=nvidia_gpu.cuda_id(place.name),
        kind=ShareKind.CUDA_POOL,
        label=f"CUDA Pool{place.number}",
        within=RAM,
        used_bytes=figure.bytes,
        source=figure.source,
        quality=Quality.MEASURED,
        device=place.name,
        note=EVERY_BUFFER if figure.source in NVMAPS else None,
    )


def _busy(found: Findings, part: Literal["gr3d", "emc"]) -> float | Absent:
    """A tegrastats line without the field means unknown, not idle."""
    if found.tegrastats is None:
        return Absent.NOT_AVAILABLE
    if "tegrastats" in found.stale:
        return Absent.STALE
    load = found.tegrastats.gr3d if part == "gr3d" else found.tegrastats.emc
    return load if isinstance(load, Absent) else load.busy_ratio


def first_known(one: V | Absent, other: V | Absent) -> V | Absent:
    """Return the first value that is known; without one, the first reason."""
    return other if isinstance(one, Absent) and not isinstance(other, Absent) else one


def _vitals(found: Findings, by_nvml: Device) -> Vitals:
    """Use tegrastats' values, and NVML's for what it does not print. Up to Orin, NVML has none."""
    if found.tegrastats is None:
        printed = Vitals.absent(Absent.NOT_AVAILABLE)
    elif "tegrastats" in found.stale:
        printed = Vitals.absent(Absent.STALE)
    else:
        printed = read_vitals(found.tegrastats)
    return Vitals(
        first_known(printed.temperature_celsius, by_nvml.temperature_celsius),
        first_known(printed.power_watts, by_nvml.power_watts),
        first_known(printed.clock_hertz, by_nvml.clock_hertz),
        by_nvml.throttled,
    )


def _rail_of(found: Findings) -> dict[str, str]:
    """Name the rail whose power is shown: it may feed more than the GPU."""
    line = None if "tegrastats" in found.stale else found.tegrastats
    rail = find_rail(line.rails_milliwatts) if line else None
    return {"power_rail": rail} if rail else {}


def build_tegrastats(found: Findings) -> Tegrastats | Absent | None:
    """Return the memory figures that only tegrastats reports; None without them."""
    if found.tegrastats is None:
        return None
    if "tegrastats" in found.stale:
        return Absent.STALE
    blocks, size = found.tegrastats.largest_free_blocks, found.tegrastats.largest_free_block_bytes
    if isinstance(blocks, Absent) or isinstance(size, Absent):
        return Absent.INCONSISTENT
    return Tegrastats(blocks, size)


def with_board_names(machine: Machine | None, tegra: TegraReading | None) -> Machine | None:
    """Add the names of board, chip and release to the machine."""
    if machine is None or tegra is None:
        return machine
    soc = Absent.NOT_AVAILABLE if tegra.soc == SOME_TEGRA else tegra.soc
    words = {"board": tegra.board, "soc": soc, "l4t": tegra.l4t, "jetpack": tegra.jetpack}
    known = {name: word for name, word in words.items() if isinstance(word, str)}
    return replace(machine, details={**machine.details, **known})
