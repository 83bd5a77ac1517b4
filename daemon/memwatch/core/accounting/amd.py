"""AMD GPUs as the amdgpu driver reports them: cards with VRAM, and APUs that use System RAM."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core.accounting.device_memory import (
    EXPLANATIONS,
    ClientPart,
    ClientTotals,
    DeviceMemory,
    remainder,
    sum_parts,
    without_figures,
)
from memwatch.core.drivers.amd.architecture import (
    ArchitectureDecision,
    decide_architecture,
    free_bytes,
    is_unread,
    takes_gtt,
)
from memwatch.core.drivers.amd.records import AmdGpu, AmdReading, AmdSensors
from memwatch.core.drivers.amd.smi import SmiGpu, SmiProcess
from memwatch.core.drivers.drm.records import DrmClient, DrmReading
from memwatch.core.findings import Findings
from memwatch.core.model import (
    RAM,
    Absent,
    Architecture,
    Bytes,
    Device,
    Pool,
    PoolKind,
    ProcessList,
    Quality,
    Share,
    ShareKind,
    Words,
    find_system_ram,
)
from memwatch.core.units import size

APU = "The GPU is part of the processor: it uses a firmware carve-out plus System RAM (GTT)."
NO_VRAM = "The GPU is part of the processor and has no dedicated memory: it uses System RAM."
SPILL = "spill: buffers of this GPU in System RAM, not additional VRAM"
UNREAD = "Some processes cannot be read: their memory on this GPU is not listed, unless they use ROCm."
SHARED = "Some processes share buffers: their sum exceeds the used memory."
NO_FILES = "The driver has no files about its memory (mem_info_*), so its VRAM is unknown: newer kernels have them."
NO_BAR = "The CPU can access only a part of this GPU's memory: it has no resizable BAR."
REGIONS = frozenset({"vram", "gtt"})


class GpuContext(Struct, frozen=True):
    """A GPU's id, its number in labels (empty if it is the only one), and the findings that concern it.

    `last_drm`: the clients that were read last, while they are stale.
    """

    name: str
    number: str
    ram: Pool | None
    reading: AmdReading
    drm: DrmReading | Absent
    sensors: AmdSensors
    smi: SmiGpu
    sees_all_processes: bool
    last_drm: DrmReading | None = None

    @property
    def gtt(self) -> str:
        return f"{self.name}.gtt"

    @property
    def hides_processes(self) -> bool:
        clients_are_hidden = isinstance(self.drm, DrmReading) and not self.drm.is_complete
        return not self.sees_all_processes or not self.reading.lists_compute or clients_are_hidden


def build_device_memories(found: Findings, first: int) -> list[DeviceMemory]:
    """Return the GPUs that the driver reports, by PCI address. If it stops reporting, they stay without figures."""
    reading = found.amdgpu
    if reading is None:
        return []
    alone = first == 0 and len(reading.gpus) == 1
    drm = Absent.STALE if "drm" in found.stale else found.drm or Absent.NOT_AVAILABLE
    device_memories = [
        build_device_memory(
            gpu,
            GpuContext(
                name=f"gpu{at}",
                number="" if alone else f" {at}",
                ram=find_system_ram(found.pools),
                reading=reading,
                drm=drm,
                sensors=find_sensors(gpu, found),
                smi=find_smi_gpu(gpu, found),
                sees_all_processes=found.machine is None or found.machine.sees_all_processes,
                last_drm=found.drm if drm is Absent.STALE else None,
            ),
        )
        for at, gpu in enumerate(reading.gpus, first)
    ]
    return (
        [device_memory.as_stale() for device_memory in device_memories]
        if "amdgpu" in found.stale
        else device_memories
    )


def find_sensors(gpu: AmdGpu, found: Findings) -> AmdSensors:
    """Return the sensor readings of a GPU. A GPU that may suspend has none: reading them would keep it awake."""
    if "amdgpu_sensors" in found.stale:
        return AmdSensors(Absent.STALE, Absent.STALE)
    unknown = AmdSensors(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    return (found.amdgpu_sensors or {}).get(gpu.card.pci, unknown)


def find_smi_gpu(gpu: AmdGpu, found: Findings) -> SmiGpu:
    """Return the data of AMD's own tools for this GPU."""
    listed = found.amd_smi.gpus if found.amd_smi is not None and "amd_smi" not in found.stale else ()
    return next((one for one in listed if one.pci == gpu.card.pci), SmiGpu(gpu.card.pci))


def build_device_memory(gpu: AmdGpu, place: GpuContext) -> DeviceMemory:
    verdict = decide_architecture(gpu.card)
    in_gtt = takes_gtt(gpu, verdict.is_apu, place.reading.pages_limit_bytes)
    clients = sum_clients(gpu, place.drm, in_gtt, place.smi.processes)
    pool = build_pool(gpu, place, verdict, clients)
    share = build_gtt_share(gpu, place, verdict) if place.ram and gpu.state == "ok" else None
    places = {"vram": pool.id if pool else None, "gtt": share.id if share else None}
    return DeviceMemory(
        device=build_device(gpu, place, verdict, clients, in_gtt, places),
        explanation=explanation_of(gpu, verdict, pool),
        pools=(pool,) if pool else (),
        shares=(share,) if share else (),
        held={**bytes_by_pid(clients.by_pid, places, clients.unread), **_held_last(gpu, place, in_gtt, places)},
        held_most=most_by_pid(clients, places),
        unplaced=find_unplaced(clients.by_pid, places),
        beyond_meminfo=share.used_bytes if share else None,
    )


def _held_last(
    gpu: AmdGpu, place: GpuContext, in_gtt: bool, places: Mapping[str, str | None]
) -> Mapping[int, Mapping[str, Bytes]]:
    """Return where the clients that were read last held memory, while they are stale."""
    if place.last_drm is None:
        return {}
    clients = sum_clients(gpu, place.last_drm, in_gtt)
    return without_figures(bytes_by_pid(clients.by_pid, places, clients.unread), Absent.STALE)


def explanation_of(gpu: AmdGpu, verdict: ArchitectureDecision, pool: Pool | None) -> str:
    if verdict.is_apu:
        return APU if pool or is_unread(gpu.card.vram_bytes) else NO_VRAM
    return EXPLANATIONS[
        Architecture.DISCRETE if verdict.architecture is Architecture.DISCRETE else Architecture.UNKNOWN
    ]


def build_pool(gpu: AmdGpu, place: GpuContext, verdict: ArchitectureDecision, clients: ClientUsage) -> Pool | None:
    """Build the pool: VRAM, or an APU's firmware carve-out, which is not in MemTotal. An MI300A has neither."""
    size, used = gpu.vram.total_bytes, gpu.vram.used_bytes
    if not isinstance(size, int) or not size:
        return None
    held = clients.total if isinstance(clients.total, Absent) else [clients.total.vram]
    rest = remainder(used, Absent.NOT_SUPPORTED, held)
    return Pool(
        id=place.name,
        kind=PoolKind.CARVEOUT if verdict.is_apu else PoolKind.VRAM,
        label=("GPU carve-out" if verdict.is_apu else "VRAM") + place.number,
        size_bytes=size,
        used_bytes=used,
        available_bytes=used if isinstance(used, Absent) else size - used,
        source=source_of(place.reading, "mem_info_vram_used"),
        quality=quality_of(place.reading),
        unattributed_bytes=rest.bytes,
        overlap=rest.overlap,
    )


def build_gtt_share(gpu: AmdGpu, place: GpuContext, verdict: ArchitectureDecision) -> Share | None:
    """Build the share of System RAM that the GPU has bound. The GTT total is a limit, not memory."""
    if gpu.gtt.total_bytes is Absent.NOT_SUPPORTED and gpu.gtt.used_bytes is Absent.NOT_SUPPORTED:
        return None
    return Share(
        id=place.gtt,
        kind=ShareKind.GTT,
        label=f"GTT{place.number}",
        within=RAM,
        used_bytes=gpu.gtt.used_bytes,
        limit_bytes=gpu.gtt.total_bytes,
        source=source_of(place.reading, "mem_info_gtt_used"),
        quality=quality_of(place.reading),
        device=place.name,
        note=SPILL if verdict.architecture is Architecture.DISCRETE else None,
    )


def source_of(reading: AmdReading, file: str) -> str:
    return f"sysfs:{file}" if reading.source == "sysfs" else reading.source


def quality_of(reading: AmdReading) -> Quality:
    """amd-smi rounds down to MiB."""
    return Quality.ESTIMATED if reading.source == "amd-smi" else Quality.MEASURED


def bytes_by_pid(
    clients: Mapping[int, ClientMemory],
    places: Mapping[str, str | None],
    unread: Mapping[int, Collection[str]],
) -> dict[int, dict[str, Bytes]]:
    """Return bytes by process and place. Bytes in an unknown place are left out.

    `unread`: regions of a process of which a size cannot be read.
    """
    held: dict[int, dict[str, Bytes]] = {}
    for pid, figures in clients.items():
        lost = dict.fromkeys(unread.get(pid, ()), Absent.INCONSISTENT)
        by_place: dict[str, Bytes] = {"vram": figures.vram, "gtt": figures.gtt, **lost}
        held[pid] = {place: by_place[kind] for kind, place in places.items() if place and by_place[kind]}
    return held


def find_unplaced(clients: Mapping[int, ClientMemory], places: Mapping[str, str | None]) -> frozenset[int]:
    """Return the processes with memory in a region whose pool or share is not known."""
    return frozenset(
        pid
        for pid, figures in clients.items()
        if (figures.vram and not places["vram"]) or (figures.gtt and not places["gtt"])
    )


def most_by_pid(clients: ClientUsage, places: Mapping[str, str | None]) -> dict[int, dict[str, int]]:
    """Return the upper bounds by process and place, where clients of a process may share buffers."""
    found = bytes_by_pid(clients.most_by_pid, places, {})
    return {
        pid: {place: size for place, size in held.items() if isinstance(size, int)} for pid, held in found.items()
    }


def build_device(
    gpu: AmdGpu,
    place: GpuContext,
    verdict: ArchitectureDecision,
    clients: ClientUsage,
    in_gtt: bool,
    places: Mapping[str, str | None],
) -> Device:
    """A card allocates only from its own memory, an APU from both; `relations` combines the two."""
    ways = (places["vram"], places["gtt"]) if verdict.is_apu else (places["vram"],)
    return Device(
        id=place.name,
        vendor="AMD",
        name=gpu.card.name,
        architecture=verdict.architecture,
        uuid=gpu.card.unique_id,
        pci=gpu.card.pci if ":" in gpu.card.pci else Absent.NOT_AVAILABLE,
        driver=f"amdgpu {place.reading.driver}" if isinstance(place.reading.driver, str) else "amdgpu",
        allocates_from=tuple(way for way in ways if way),
        headroom_after_reclaim_bytes=_headroom_reason(gpu, verdict),
        state=gpu.state,
        evidence=verdict.evidence,
        errors={**place.smi.errors, **place.sensors.errors},
        process_list=_process_list(place),
        api_free_bytes=_api_free(gpu, place, in_gtt),
        busy_ratio=place.sensors.busy_ratio,
        memory_busy_ratio=place.sensors.memory_busy_ratio,
        details=build_details(gpu, place),
        notes=build_notes(gpu, place, clients),
    )


def _headroom_reason(gpu: AmdGpu, verdict: ArchitectureDecision) -> Absent:
    """Return why there is no headroom yet. An APU's carve-out of unknown size makes the sum unknown for good."""
    size = gpu.vram.total_bytes
    return size if verdict.is_apu and isinstance(size, Absent) and is_unread(size) else Absent.NOT_AVAILABLE


def _process_list(place: GpuContext) -> ProcessList | Absent:
    if isinstance(place.drm, Absent):
        return place.drm
    return "partial" if place.hides_processes else "complete"


def _api_free(gpu: AmdGpu, place: GpuContext, in_gtt: bool) -> dict[str, Bytes]:
    """Free memory by ROCm's own rule. Empty if ROCm cannot use the GPU."""
    if not gpu.card.nodes or place.ram is None or gpu.state != "ok":
        return {}
    size = gpu.card.vram_bytes
    if isinstance(size, Absent) and is_unread(size):
        return {"rocm": size}
    return {"rocm": free_bytes(gpu, in_gtt, place.reading, place.ram.size_bytes, place.ram.available_bytes)}


def build_details(gpu: AmdGpu, place: GpuContext) -> dict[str, str]:
    """Return further facts from the driver, as it spells them."""
    card = gpu.card
    words: dict[str, Words] = {
        "pci_id": f"1002:{card.device_id}" if card.device_id else Absent.NOT_AVAILABLE,
        "gfx": card.nodes[0].gfx if card.nodes else Absent.NOT_SUPPORTED,
        "vram_vendor": card.vram_vendor,
        "vram_type": place.smi.vram_type,
        "compute_partition": card.compute_partition,
        "memory_partition": card.memory_partition,
        "power": gpu.runtime_status,
    }
    return {name: word for name, word in words.items() if isinstance(word, str)}


def build_notes(gpu: AmdGpu, place: GpuContext, clients: ClientUsage) -> tuple[str, ...]:
    visible, vram = gpu.card.visible_vram_bytes, gpu.card.vram_bytes
    notes = {
        UNREAD: place.hides_processes,
        SHARED: clients.are_shared,
        NO_FILES: gpu.state == "ok" and gpu.vram.total_bytes is Absent.NOT_SUPPORTED,
        NO_BAR: isinstance(visible, int) and isinstance(vram, int) and visible < vram,
        _pages_limit(place.reading, gpu): bool(_pages_limit(place.reading, gpu)),
    }
    return tuple(note for note, holds in notes.items() if holds)


def _pages_limit(reading: AmdReading, gpu: AmdGpu) -> str:
    """Note on a limit for all GPUs together that is below this GPU's own; the driver logs that as unusual."""
    limit, own = reading.pages_limit_bytes, gpu.gtt.total_bytes
    if not isinstance(limit, int) or not isinstance(own, int) or limit >= own:
        return ""
    return (
        f"All GPUs together may use {size(limit)} of System RAM (pages_limit), which is less than this GPU's GTT."
    )


class ClientMemory(NamedTuple):
    """Bytes of VRAM (or of the carve-out), and of System RAM through GTT."""

    vram: int = 0
    gtt: int = 0


class ClientUsage(Struct, frozen=True):
    """`by_pid`: memory of each process, `most_by_pid` upper bounds of it where its clients may share buffers.

    `total`: each byte once, as processes may share clients. `unread`: regions of a process of which a size cannot
    be read.
    """

    by_pid: Mapping[int, ClientMemory]
    total: ClientMemory | Absent
    are_shared: bool
    unread: Mapping[int, frozenset[str]] = field(default_factory=dict)
    most_by_pid: Mapping[int, ClientMemory] = field(default_factory=dict)


def sum_clients(
    gpu: AmdGpu, drm: DrmReading | Absent, compute_is_gtt: bool, listed: Iterable[SmiProcess] = ()
) -> ClientUsage:
    """Sum the DRM clients and the processes of the compute driver (KFD), which are not all DRM clients.

    Both report most of a ROCm process, so the larger figure counts and never the sum. Processes that AMD's tools
    list (`listed`) count only if no other source reports them. Buffers in the region `cpu` are left out: up to
    Linux 6.12 it also lists a process's own pages, which its resident set contains.
    """
    clients = [] if isinstance(drm, Absent) else [client for client in drm.clients if _belongs_to(client, gpu)]
    vram = _sum_region(clients, "vram", gpu.vram.used_bytes)
    gtt = _sum_region(clients, "gtt", gpu.gtt.used_bytes)
    pids = dict.fromkeys(pid for client in clients for pid in client.pids)
    by_pid = {pid: ClientMemory(vram.by_pid.get(pid, 0), gtt.by_pid.get(pid, 0)) for pid in pids}
    total = ClientMemory(vram.total, gtt.total)
    most = {pid: ClientMemory(vram.most_by_pid.get(pid, 0), gtt.most_by_pid.get(pid, 0)) for pid in pids}
    for pid, held in gpu.held.items():
        before = by_pid.get(pid, ClientMemory())
        more = (
            ClientMemory(gtt=max(0, held - before.gtt))
            if compute_is_gtt
            else ClientMemory(vram=max(0, held - before.vram))
        )
        by_pid[pid] = _sum(before, more)
        total = _sum(total, more)
    for process in listed:
        if process.pid not in by_pid:
            by_pid[process.pid] = ClientMemory(process.vram_bytes, process.gtt_bytes)
            total = _sum(total, by_pid[process.pid])
    unread = {
        pid: REGIONS.intersection(client.unread)
        for client in clients
        if not REGIONS.isdisjoint(client.unread)
        for pid in client.pids
    }
    unknown = Absent.INCONSISTENT if unread else total
    return ClientUsage(
        {pid: held for pid, held in sorted(by_pid.items()) if held != ClientMemory() or pid in unread},
        drm if isinstance(drm, Absent) else unknown,
        any(len(client.pids) > 1 and any(client.resident.values()) for client in clients),
        unread,
        {pid: held for pid, held in most.items() if held != ClientMemory()},
    )


def _sum_region(clients: Iterable[DrmClient], region: str, used: Bytes) -> ClientTotals:
    parts = [ClientPart(one.pids, one.resident.get(region, 0), one.shared.get(region, 0)) for one in clients]
    return sum_parts(parts, used)


def _sum(one: ClientMemory, other: ClientMemory) -> ClientMemory:
    return ClientMemory(one.vram + other.vram, one.gtt + other.gtt)


def _belongs_to(client: DrmClient, gpu: AmdGpu) -> bool:
    """Match by PCI address. A partition of an MI300 has none and is matched by the opened device file."""
    if client.driver != "amdgpu":
        return False
    if client.pdev is not None:
        return client.pdev == gpu.card.pci
    return client.node == gpu.card.render_node or client.node in gpu.card.cards or client.node in _partitions(gpu)


def _partitions(gpu: AmdGpu) -> set[str]:
    return {f"renderD{node.render_minor}" for node in gpu.card.nodes if isinstance(node.render_minor, int)}
