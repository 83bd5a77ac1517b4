"""Intel GPUs, GPUs of systems on a chip and NPUs, as their kernel drivers report them in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.device_memory import (
    EXPLANATIONS,
    ClientPart,
    ClientTotals,
    DeviceMemory,
    NpuMemory,
    remainder,
    sum_parts,
)
from memwatch.core.drivers.drm.cards import can_render
from memwatch.core.drivers.drm.records import DrmCard, DrmClient, DrmReading
from memwatch.core.findings import Findings
from memwatch.core.model import (
    NPU,
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
    find_system_ram,
    known_or,
    sum_figures,
)
from memwatch.core.snapshot import Machine

# No line of /proc/meminfo accounts for buffers from TTM's page pools (xe). All other drivers here use the kernel's
# shared memory (shmem), which Shmem already contains.
BEYOND_MEMINFO = frozenset({"xe"})
# Drivers with TTM pools: if only one of them is present, the kernel's count of TTM pages belongs to it.
WITH_TTM = frozenset({"amdgpu", "nouveau", "radeon", "vmwgfx", "xe"})
VENDORS = {"8086": "Intel", "10de": "NVIDIA", "1002": "AMD"}
MAKERS_BY_DRIVER = {
    "asahi": ("Apple", "Apple GPU"),
    "etnaviv": ("Vivante", "Vivante GPU"),
    "lima": ("Arm", "Arm Mali"),
    "msm": ("Qualcomm", "Qualcomm Adreno"),
    "panfrost": ("Arm", "Arm Mali"),
    "panthor": ("Arm", "Arm Mali"),
    "powervr": ("Imagination", "Imagination PowerVR"),
    "v3d": ("Broadcom", "Broadcom VideoCore"),
}
HIDDEN = "Processes outside this container are not visible: their memory on this device is not counted."
UNREADABLE = "This user cannot read some processes: their memory on this device is not counted."
SHARED_CLIENT = "Some processes share one driver client: its bytes are counted once, and listed for each process."
NO_SIZE = "No file reports the size of its memory; with xe, the dmem cgroup controller does (Linux 6.14 and newer)."
UNREAD_SIZE = "a lower bound: the size of a client cannot be read"
NO_MEMORY_KEYS = "Its driver does not report memory."
# The fdinfo keys by basis.
KEYS = {"resident": "drm-resident", "memory": "drm-memory", "total": "drm-total", "alloc": "amdxdna-alloc"}


class GpuContext(NamedTuple):
    """A GPU's id, its number in labels (empty if it is the only one), and the machine around it."""

    name: str
    number: str
    ram: Pool | None
    machine: Machine
    reading: DrmReading


class ClientSum(Struct, frozen=True):
    """Memory of clients with its source and quality."""

    bytes: Bytes
    source: str
    quality: Quality
    note: str | None = None


def build_device_memories(found: Findings, first: int) -> list[DeviceMemory]:
    """Return the GPUs of DRM drivers. After the collector stops answering, they stay without figures."""
    if found.drm is None:
        return []
    gpus, machine, ram = select_gpus(found.drm), found.machine or Machine(), find_system_ram(found.pools)
    device_memories = [
        build_device_memory(
            gpu, GpuContext(f"gpu{at}", "" if len(gpus) == 1 else f" {at}", ram, machine, found.drm)
        )
        for at, gpu in enumerate(gpus, first)
    ]
    return (
        [device_memory.as_stale() for device_memory in device_memories] if "drm" in found.stale else device_memories
    )


def build_device_memory(gpu: Gpu, place: GpuContext) -> DeviceMemory:
    pool = vram_pool(gpu, place)
    system = in_system_ram(gpu, place)
    share = buffers_share(place, system) if place.ram and system else None
    return DeviceMemory(
        device=build_device(gpu, place, pool),
        explanation=EXPLANATIONS[gpu.architecture],
        pools=(pool,) if pool else (),
        shares=(share,) if share else (),
        held=held_by_pid(gpu, pool, share),
        held_most=most_by_pid(gpu, pool, share),
        unplaced=find_unplaced(gpu, pool, share),
        beyond_meminfo=system.bytes if share and system and gpu.driver in BEYOND_MEMINFO else None,
    )


def build_device(gpu: Gpu, place: GpuContext, pool: Pool | None) -> Device:
    card, unified = gpu.card, gpu.architecture is Architecture.UNIFIED
    vendor, name = vendor_and_name(gpu)
    compatible = {} if isinstance(card.compatible, Absent) else {"compatible": card.compatible}
    return Device(
        id=place.name,
        vendor=vendor,
        name=name,
        architecture=gpu.architecture,
        pci=card.pdev or Absent.NOT_SUPPORTED,
        driver=gpu.driver,
        allocates_from=(pool.id,) if pool else (RAM,) if unified and place.ram else (),
        headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE if pool or unified else Absent.NOT_SUPPORTED,
        evidence=gpu.evidence,
        process_list=process_list_of(gpu, place),
        details=compatible,
        notes=build_notes(gpu, place, pool),
    )


def vendor_and_name(gpu: Gpu) -> tuple[str, str]:
    """Return vendor and name. A card's PCI id identifies the vendor; on a chip, the driver does."""
    card = gpu.card
    if isinstance(card.vendor_id, Absent):
        return MAKERS_BY_DRIVER.get(gpu.driver, ("unknown", f"{gpu.driver} GPU"))
    vendor = VENDORS.get(card.vendor_id, card.vendor_id)
    return vendor, card.model if isinstance(card.model, str) else f"{vendor} GPU {card.device_id}"


def process_list_of(gpu: Gpu, place: GpuContext) -> ProcessList | Absent:
    if gpu.is_silent:
        return Absent.NOT_SUPPORTED
    return "complete" if place.machine.sees_all_processes and place.reading.is_complete else "partial"


def build_notes(gpu: Gpu, place: GpuContext, pool: Pool | None) -> tuple[str, ...]:
    reasons = {
        NO_MEMORY_KEYS: gpu.is_silent,
        HIDDEN: not place.machine.sees_all_processes,
        UNREADABLE: place.machine.sees_all_processes and not place.reading.is_complete,
        SHARED_CLIENT: any(len(client.pids) > 1 and any(client.resident.values()) for client in gpu.clients),
        NO_SIZE: gpu.architecture is Architecture.DISCRETE and pool is None,
    }
    return tuple(text for text, holds in reasons.items() if holds)


def in_system_ram(gpu: Gpu, place: GpuContext) -> ClientSum | None:
    """Return the GPU's part of System RAM. None if it is unknown whether it uses any."""
    if gpu.architecture is Architecture.UNKNOWN:
        return None
    if gpu.is_silent:
        return ClientSum(Absent.NOT_SUPPORTED, "fdinfo", Quality.DERIVED, NO_MEMORY_KEYS)
    counted = place.reading.gpu_active_bytes
    ttm = [card for card in place.reading.cards if card.driver in WITH_TTM]
    if isinstance(counted, int) and counted and gpu.driver in BEYOND_MEMINFO and len(ttm) == 1:
        return ClientSum(counted, "meminfo:GPUActive", Quality.MEASURED, "includes the driver's own buffers")
    if not place.machine.sees_all_processes:
        return ClientSum(Absent.NOT_PERMITTED, "fdinfo", Quality.DERIVED, HIDDEN)
    return sum_clients(gpu, place)


def sum_clients(gpu: Gpu, place: GpuContext) -> ClientSum:
    """Sum the clients. The sum is exact unless clients share buffers, which each of their processes counts.

    A sum of 0 says nothing if some processes cannot be read.
    """
    bases = sorted({client.basis for client in gpu.clients if client.basis})
    sharing = [client for client in gpu.clients if any(is_in_ram(key) and n for key, n in client.shared.items())]
    is_unseen = not gpu.in_ram.total and not place.reading.is_complete
    notes = {
        "a lower bound: this user cannot read some processes": not place.reading.is_complete and not is_unseen,
        UNREAD_SIZE: gpu.in_ram.is_partial,
        "shared buffers are counted for each process": len(sharing) > 1,
        "requested sizes, with or without memory behind them": "total" in bases,
    }
    exact = len(sharing) < 2 and "total" not in bases and not gpu.in_ram.is_partial
    return ClientSum(
        bytes=Absent.NOT_PERMITTED if is_unseen else gpu.in_ram.total,
        source="fdinfo:" + "+".join(KEYS[basis] for basis in bases or ["resident"]),
        quality=Quality.DERIVED if exact else Quality.ESTIMATED,
        note="; ".join(text for text, holds in notes.items() if holds) or None,
    )


def buffers_share(place: GpuContext, system: ClientSum) -> Share:
    fits = isinstance(system.bytes, Absent) or place.ram is None or system.bytes <= place.ram.size_bytes
    return Share(
        id=f"{place.name}.buffers",
        kind=ShareKind.GPU_BUFFERS,
        label=f"GPU buffers{place.number}",
        within=RAM,
        used_bytes=system.bytes if fits else Absent.INCONSISTENT,
        source=system.source,
        quality=system.quality,
        device=place.name,
        note=system.note,
    )


def vram_pool(gpu: Gpu, place: GpuContext) -> Pool | None:
    """Build the card's own memory if a device-wide counter reports its size. Clients never add up to it."""
    regions = [region for region in gpu.card.regions if is_own(region.name)]
    if gpu.architecture is not Architecture.DISCRETE or not regions:
        return None
    size = sum(region.size_bytes for region in regions)
    used = sum_figures([region.used_bytes for region in regions])
    rest = remainder(used, Absent.NOT_SUPPORTED, Absent.INCONSISTENT if gpu.own.is_partial else [gpu.own.total])
    return Pool(
        id=place.name,
        kind=PoolKind.VRAM,
        label=f"VRAM{place.number}",
        size_bytes=size,
        used_bytes=used,
        available_bytes=used if isinstance(used, Absent) else size - used,
        source=regions[0].source,
        quality=Quality.MEASURED if len(regions) == 1 else Quality.DERIVED,
        unattributed_bytes=rest.bytes,
        overlap=rest.overlap,
    )


def held_by_pid(gpu: Gpu, pool: Pool | None, share: Share | None) -> Mapping[int, Mapping[str, Bytes]]:
    """Return bytes by process and place. Processes with an unknown amount of System RAM have an absent figure."""
    held: dict[int, dict[str, Bytes]] = {}
    for place, those in _totals_by_place(gpu, pool, share):
        for pid, size in those.by_pid.items():
            held.setdefault(pid, {})[place] = size
        for pid in those.unread_pids:
            held.setdefault(pid, {})[place] = Absent.INCONSISTENT
    if share:
        held |= {pid: {**held.get(pid, {}), share.id: Absent.NOT_SUPPORTED} for pid in gpu.uncounted_pids}
    return held


def find_unplaced(gpu: Gpu, pool: Pool | None, share: Share | None) -> frozenset[int]:
    """Return the processes with memory of a card whose size is not known, or in System RAM that is not read."""
    without = [] if pool else [gpu.own]
    without += [] if share else [gpu.in_ram]
    return frozenset(pid for those in without for pid, size in those.by_pid.items() if size)


def most_by_pid(gpu: Gpu, pool: Pool | None, share: Share | None) -> Mapping[int, Mapping[str, int]]:
    """Return the upper bounds by process and place, where clients of a process may share buffers."""
    found: dict[int, dict[str, int]] = {}
    for place, those in _totals_by_place(gpu, pool, share):
        for pid, size in those.most_by_pid.items():
            if pid not in those.unread_pids:
                found.setdefault(pid, {})[place] = size
    return found


def _totals_by_place(gpu: Gpu, pool: Pool | None, share: Share | None) -> list[tuple[str, ClientTotals]]:
    places = [(pool.id, gpu.own)] if pool else []
    return [*places, (share.id, gpu.in_ram)] if share else places


def build_npus(found: Findings) -> list[NpuMemory]:
    """Return the NPUs that the kernel's drivers report; an empty list if System RAM is unknown."""
    ram = find_system_ram(found.pools)
    if found.drm is None or ram is None:
        return []
    npus, machine = select_npus(found.drm), found.machine or Machine()
    with_memory: list[NpuMemory] = []
    for at, npu in enumerate(npus):
        place = GpuContext(f"{NPU}{at}", "" if len(npus) == 1 else f" {at}", ram, machine, found.drm)
        if system := in_system_ram(npu, place):
            share = replace(
                buffers_share(place, system),
                kind=ShareKind.NPU_BUFFERS,
                label=f"NPU buffers{place.number}",
                device=None,
            )
            with_memory.append(NpuMemory((share,), held_by_pid(npu, None, share), most_by_pid(npu, None, share)))
    return [npu.as_stale() for npu in with_memory] if "drm" in found.stale else with_memory


# The architecture of a card: the relation of its memory to System RAM, by observations.

# Drivers with their own accounting module (amdgpu, nvidia), and displays without a GPU.
OTHER_DRIVERS = frozenset({"amdgpu", "nvidia", "nvidia-drm", "radeon"})
INTEL = frozenset({"i915", "xe"})
# Platform drivers whose buffers are pages of System RAM, by their name in fdinfo.
ON_A_CHIP = frozenset({"asahi", "etnaviv", "lima", "msm", "panfrost", "panthor", "powervr", "v3d"})
# Neural processing units without dedicated memory, by the bound driver.
NPUS = frozenset({"intel_vpu", "amdxdna", "rocket"})
# Where display and GPU are one kernel device, the display's driver is bound.
GPU_DRIVERS = {"msm_dpu": "msm", "msm_mdp": "msm", "msm-mdss": "msm", "adreno": "msm", "vc4-drm": "v3d"}
# Regions in the card's own memory (xe: vram0; i915: local0 and the part that firmware keeps).
OWN = ("vram", "local", "stolen-local")
# Regions in System RAM. The kernel's fdinfo rules reserve "memory" for it; firmware's "stolen" memory is outside.
IN_RAM = ("system", "gtt", "memory", "cpu")
UNKNOWN = Absent.NOT_SUPPORTED


class Gpu(Struct, frozen=True):
    """A card with its clients, its architecture, and the observations that decided it.

    `uncounted_pids`: processes that use it, but whose memory its driver does not report.
    """

    card: DrmCard
    driver: str
    clients: tuple[DrmClient, ...]
    architecture: Architecture
    evidence: tuple[str, ...]
    in_ram: ClientTotals
    own: ClientTotals
    uncounted_pids: frozenset[int] = frozenset()

    @property
    def is_silent(self) -> bool:
        """True if its driver has clients but does not report them or their memory."""
        return self.driver == "nouveau" or bool(self.uncounted_pids)


def is_own(region: str) -> bool:
    return region.startswith(OWN)


def is_in_ram(region: str) -> bool:
    return region.startswith(IN_RAM)


# A reading is valid for 5 s and used on every tick; 60 clients take 0.3 ms.
@lru_cache(maxsize=1)
def select_gpus(reading: DrmReading) -> tuple[Gpu, ...]:
    """Return the GPUs that this module accounts for, in the order of the reading's cards."""
    found = [_build_gpu(card, reading) for card in reading.cards]
    return tuple(gpu for gpu in found if gpu is not None)


@lru_cache(maxsize=1)
def select_npus(reading: DrmReading) -> tuple[Gpu, ...]:
    """Return the neural processing units that use System RAM, in the order of the reading."""
    found = [_build_npu(card, reading) for card in reading.npus]
    return tuple(npu for npu in found if npu is not None)


def sum_by_pid(clients: Sequence[DrmClient], counts: Callable[[str], bool], used: Bytes = UNKNOWN) -> ClientTotals:
    """Sum the clients in the regions that count, in which `used` bytes are in use."""
    unread = {pid for client in clients if any(map(counts, client.unread)) for pid in client.pids}
    return replace(
        sum_parts((_part_of(client, counts) for client in clients), used), unread_pids=tuple(sorted(unread))
    )


def _part_of(client: DrmClient, counts: Callable[[str], bool]) -> ClientPart:
    sizes = {region: size for region, size in client.resident.items() if counts(region)}
    shared = sum(min(size, client.shared.get(region, 0)) for region, size in sizes.items())
    # panthor reports its internal memory for a client separately.
    internal = client.other.get("panthor-resident-memory", 0) if counts("memory") else 0
    return ClientPart(client.pids, sum(sizes.values()) + internal, shared)


def own_used(card: DrmCard) -> Bytes:
    """Return the use of the card's own memory by a counter of the whole device."""
    regions = [region.used_bytes for region in card.regions if is_own(region.name)]
    return sum_figures(regions) if regions else UNKNOWN


def clients_on(card: DrmCard, clients: Iterable[DrmClient]) -> tuple[DrmClient, ...]:
    """Return the clients of a card, matched by PCI address, otherwise by the opened device file."""
    return tuple(
        client
        for client in clients
        if (client.pdev == card.pdev if client.pdev else client.node in card.nodes)
        and client.driver not in OTHER_DRIVERS
    )


def _build_npu(card: DrmCard, reading: DrmReading) -> Gpu | None:
    """None for an accelerator that is not known to use System RAM, such as one on a card."""
    clients = clients_on(card, reading.clients)
    regions = {region for client in clients for region in client.resident}
    if card.driver not in NPUS and not (regions and all(map(is_in_ram, regions))):
        return None
    driver = known_or(card.driver, "")
    return Gpu(
        card=card,
        driver=driver,
        clients=clients,
        architecture=Architecture.UNIFIED,
        evidence=(),
        in_ram=sum_by_pid(clients, is_in_ram),
        own=ClientTotals(0, {}),
        uncounted_pids=uncounted_pids(card, clients, reading),
    )


def uncounted_pids(card: DrmCard, clients: Iterable[DrmClient], reading: DrmReading) -> frozenset[int]:
    """Return the processes that have the card open while its driver does not report their memory."""
    mute = [reading.mute.get(node, ()) for node in card.nodes]
    silent = [client.pids for client in clients if client.basis is None]
    return frozenset(chain(*mute, *silent))


def _build_gpu(card: DrmCard, reading: DrmReading) -> Gpu | None:
    clients = clients_on(card, reading.clients)
    bound = known_or(card.driver, "")
    driver = next((client.driver for client in clients), GPU_DRIVERS.get(bound, bound))
    reporting = [client for client in clients if client.basis is not None]
    if bound in OTHER_DRIVERS or card.place.startswith("amdgpu_xcp") or not can_render(card.nodes):
        return None
    if driver not in INTEL | ON_A_CHIP | {"nouveau"} and not reporting:
        return None
    architecture, evidence = _decide_architecture(card, driver, reporting)
    return Gpu(
        card=card,
        driver=driver,
        clients=clients,
        architecture=architecture,
        evidence=(f"the driver is {driver}", *evidence),
        in_ram=sum_by_pid(clients, is_in_ram),
        own=sum_by_pid(clients, is_own, own_used(card)),
        uncounted_pids=uncounted_pids(card, clients, reading),
    )


def _decide_architecture(
    card: DrmCard, driver: str, reporting: Sequence[DrmClient]
) -> tuple[Architecture, tuple[str, ...]]:
    regions = sorted({region for client in reporting for region in client.resident})
    own = [region for region in regions if is_own(region)] + [one.name for one in card.regions if is_own(one.name)]
    if own:
        return Architecture.DISCRETE, (f"it has dedicated memory: {', '.join(dict.fromkeys(own))}",)
    if driver in INTEL and card.pdev is not None and card.pdev.endswith(":00:02.0"):
        seen = (f"clients hold {', '.join(regions)} and no dedicated memory",) if regions else ()
        return Architecture.UNIFIED, ("it is part of the processor (PCI device 00:02.0)", *seen)
    if regions and all(is_in_ram(region) or region.startswith("stolen") for region in regions):
        return Architecture.UNIFIED, (f"clients hold {', '.join(regions)} and no dedicated memory",)
    if card.pdev is None and driver in ON_A_CHIP:
        return Architecture.UNIFIED, ("it is a platform device: part of a system on a chip",)
    if driver in INTEL:
        return Architecture.UNKNOWN, ("no client reports the location of its buffers",)
    return Architecture.UNKNOWN, (f"{driver} does not report the memory of its clients",)
