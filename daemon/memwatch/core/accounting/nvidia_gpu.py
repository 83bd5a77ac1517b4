"""One NVIDIA GPU as NVML reports it, accounted by its architecture."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.accounting import device_memory
from memwatch.core.accounting.device_memory import DeviceMemory, remainder
from memwatch.core.accounting.nvidia_architecture import ArchitectureDecision
from memwatch.core.drivers.nvml.records import (
    Asleep,
    Ecc,
    GpuInstance,
    GpuMemory,
    GpuProcess,
    GpuReading,
    MissingGpu,
    NvmlReading,
    Xid,
)
from memwatch.core.model import (
    RAM,
    Absent,
    Architecture,
    Bytes,
    Content,
    Device,
    Pool,
    PoolKind,
    ProcessList,
    Quality,
    Share,
    ShareKind,
    Words,
    known_or,
    sum_figures,
)
from memwatch.core.snapshot import Machine, Node

EXPLANATIONS = {
    **device_memory.EXPLANATIONS,
    Architecture.COHERENT: "The GPU's HBM is a NUMA node and part of MemTotal; it is counted once here.",
    Architecture.CARVEOUT: "The driver reports only a firmware carve-out; the GPU can use more memory than that.",
}
UNSEEN = "Processes outside this container are not visible: their memory on this GPU is not listed."
UNBOUNDED = "The driver does not report how much System RAM the GPU may use in addition to its carve-out."
UNLISTED = "Under WSL the driver lists few or no processes: an empty list does not mean an idle GPU."


def absent_gpu(missing: MissingGpu) -> GpuReading:
    """Build the reading of a GPU that disappeared. It keeps its place, so the others keep their ids."""
    return GpuReading(-1, missing.uuid, missing.pci, missing.name, state="missing")


class GpuContext(NamedTuple):
    """A GPU's id, its number in labels (empty if it is the only one), and the machine around it."""

    name: str
    number: str
    ram: Pool | None
    machine: Machine

    @property
    def hides_processes(self) -> str | None:
        """Reason why a process list is incomplete, as a sentence; None if it is complete."""
        if self.machine.details.get("virtualization") == "WSL2":
            return UNLISTED
        return None if self.machine.sees_all_processes else UNSEEN


def build_device_memory(
    gpu: GpuReading, place: GpuContext, verdict: ArchitectureDecision, reading: NvmlReading
) -> DeviceMemory:
    pool, shares = _build_memory(gpu, place, verdict)
    unified = verdict.architecture is Architecture.UNIFIED
    instances = tuple(share.id for share in shares if share.kind is ShareKind.MIG_INSTANCE)
    shared = (RAM,) if place.ram and verdict.architecture in (Architecture.UNIFIED, Architecture.CARVEOUT) else ()
    own = ((pool.id,) if pool else ()) + shared
    device = _build_device(gpu, place, verdict, reading, instances or own)
    holds = (cuda_id(place.name) if unified else place.name) if own else None
    return DeviceMemory(
        device=device,
        explanation=EXPLANATIONS[verdict.architecture],
        pools=(pool,) if pool else (),
        shares=shares,
        held=held_by_pid(gpu, place.name, holds, instances),
        unplaced=find_unplaced(gpu, place.name, holds, instances),
        node=verdict.node,
        beyond_meminfo=shares[0].used_bytes if unified and shares else None,
    )


def _build_device(
    gpu: GpuReading,
    place: GpuContext,
    verdict: ArchitectureDecision,
    reading: NvmlReading,
    allocates_from: tuple[str, ...],
) -> Device:
    hidden, carved = place.hides_processes, verdict.architecture is Architecture.CARVEOUT
    seen: ProcessList = "partial" if hidden else "complete"
    listed = gpu.processes if isinstance(gpu.processes, Absent) else seen
    cuda_free = place.ram.free_bytes if place.ram and verdict.architecture is Architecture.UNIFIED else None
    xids = [xid for xid in reading.xids if xid.gpu_uuid == gpu.uuid]
    return Device(
        id=place.name,
        vendor="NVIDIA",
        name="NVIDIA GPU" if isinstance(gpu.name, Absent) else gpu.name,
        architecture=verdict.architecture,
        uuid=gpu.uuid,
        pci=gpu.pci,
        driver=reading.driver,
        allocates_from=allocates_from,
        headroom_after_reclaim_bytes=Absent.NOT_SUPPORTED if carved else Absent.NOT_AVAILABLE,
        state=gpu.state,
        evidence=verdict.evidence,
        errors=count_errors(gpu, xids),
        errors_seen_unix={f"xid_{xid.code}": xid.last_seen_unix for xid in xids},
        process_list=listed,
        api_free_bytes={} if cuda_free is None else {"cuda": cuda_free},
        busy_ratio=gpu.busy_ratio,
        memory_busy_ratio=gpu.memory_busy_ratio,
        details=build_details(gpu, reading),
        notes=build_notes(gpu, hidden if listed == "partial" else None, carved),
    ).with_vitals(gpu.vitals)


def build_notes(gpu: GpuReading, hidden: str | None, carved: bool) -> tuple[str, ...]:
    asleep = describe_sleep(gpu.asleep) if gpu.asleep else None
    return tuple(filter(None, (asleep, hidden, UNBOUNDED if carved else None)))


def describe_sleep(asleep: Asleep) -> str:
    """Return since when a GPU is not called, and why."""
    if asleep.status == "idle":
        return f"Idle and not read {_since(asleep)}, so that it can be suspended."
    return f"Suspended {_since(asleep)}. Its figures are absent, as reading them would wake it."


def _since(asleep: Asleep) -> str:
    if isinstance(asleep.since_unix, Absent):
        return "since before memwatchd started to read it"
    return f"since {datetime.fromtimestamp(asleep.since_unix, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def build_details(gpu: GpuReading, reading: NvmlReading) -> Mapping[str, str]:
    """Return further facts from the driver, as it spells them."""
    mig = gpu.mig_enabled if isinstance(gpu.mig_enabled, Absent) else "enabled" if gpu.mig_enabled else "disabled"
    words: dict[str, Words] = {
        "cuda": reading.cuda,
        "addressing_mode": gpu.addressing_mode,
        "virtualization_mode": gpu.virtualization_mode,
        "mig": mig,
        "recovery_action": gpu.recovery_action,
        "row_remapping": _remapping(gpu.ecc),
        "power": gpu.asleep.status if gpu.asleep else Absent.NOT_READ,
        # Of a MIG instance, the UUIDs of its compute instances, which CUDA_VISIBLE_DEVICES takes.
        **{f"mig_{one.id}": ", ".join(one.uuids) or Absent.NOT_AVAILABLE for one in gpu.instances},
    }
    return {name: word for name, word in words.items() if isinstance(word, str)}


def _remapping(ecc: Ecc) -> Words:
    if ecc.remapping_failed is True:
        return "failed"
    return "pending" if ecc.remapping_pending is True else Absent.NOT_SUPPORTED


def _build_memory(
    gpu: GpuReading, place: GpuContext, verdict: ArchitectureDecision
) -> tuple[Pool | None, tuple[Share, ...]]:
    name, number = place.name, place.number
    if verdict.architecture is Architecture.UNIFIED:
        return None, (cuda_share(gpu, place),) if place.ram else ()
    if verdict.node is not None:
        pool = hbm_pool(gpu, name, verdict.node, number)
        return pool, (nvml_share(gpu, pool),) if isinstance(gpu.memory, GpuMemory) else ()
    if verdict.architecture is Architecture.UNKNOWN and isinstance(gpu.memory, GpuMemory):
        return None, tuple(mig_share(instance, name) for instance in gpu.instances)  # perhaps in System RAM
    if isinstance(gpu.memory, GpuMemory) and gpu.memory.total_bytes:
        kind = PoolKind.CARVEOUT if verdict.architecture is Architecture.CARVEOUT else PoolKind.VRAM
        pool = vram_pool(gpu, gpu.memory, name, kind, number)
        return pool, tuple(mig_share(instance, name) for instance in gpu.instances)
    return hidden_pool(gpu, name, number), tuple(mig_share(instance, name) for instance in gpu.instances)


def cuda_bytes(gpu: GpuReading) -> Bytes:
    """Sum the memory of processes on a GPU. Absent unless every list was read and every process has a figure."""
    if isinstance(gpu.processes, Absent):
        return gpu.processes
    return sum_figures([process.used_bytes for process in gpu.processes])


def cuda_id(device: str) -> str:
    return f"cuda{device.removeprefix('gpu')}"


def cuda_share(gpu: GpuReading, place: GpuContext) -> Share:
    """Build the share of CUDA memory. If processes are hidden, the sum would be too low, so it is absent."""
    used = cuda_bytes(gpu)
    return Share(
        id=cuda_id(place.name),
        kind=ShareKind.CUDA_POOL,
        label=f"CUDA Pool{place.number}",
        within=RAM,
        used_bytes=Absent.NOT_PERMITTED if place.hides_processes and isinstance(used, int) else used,
        source="nvml:processes",
        quality=Quality.MEASURED,
        device=place.name,
        note="excludes managed memory and driver overhead",
    )


def nvml_share(gpu: GpuReading, pool: Pool) -> Share:
    return Share(
        id=f"{pool.id}.nvml",
        kind=ShareKind.NVML_USED,
        label="NVML used",
        within=pool.id,
        used_bytes=_used_bytes(gpu.memory),
        source=f"nvml:{memory_source(gpu)}",
        quality=quality_of(gpu.memory),
        device=pool.id,
        note="excludes page cache and CPU allocations on this node",
    )


def _used_bytes(memory: GpuMemory | Absent) -> Bytes:
    """Return the used memory. A 0 that is estimated is what contradictory figures leave, and no reading."""
    if isinstance(memory, Absent):
        return memory
    return Absent.INCONSISTENT if memory.is_estimated and not memory.used_bytes else memory.used_bytes


def mig_share(instance: GpuInstance, device: str) -> Share:
    memory = instance.memory
    known = isinstance(memory, GpuMemory)
    return Share(
        id=f"{device}.mig{instance.id}",
        kind=ShareKind.MIG_INSTANCE,
        label=f"GPU {device.removeprefix('gpu')} · MIG {instance.id}",
        within=device,
        used_bytes=_used_bytes(memory),
        limit_bytes=memory.total_bytes if isinstance(memory, GpuMemory) else memory,
        source="nvml:memory_info_v2" if known else "nvml",
        quality=quality_of(memory),
        device=device,
    )


def vram_pool(gpu: GpuReading, memory: GpuMemory, name: str, kind: PoolKind, number: str) -> Pool:
    """`available` is the driver's free memory, so `used` includes the memory that the driver reserves."""
    used = memory.total_bytes - memory.free_bytes
    rest = remainder(used, memory.reserved_bytes, [cuda_bytes(gpu)])
    label = "GPU carve-out" if kind is PoolKind.CARVEOUT else "VRAM"
    return Pool(
        id=name,
        kind=kind,
        label=label + number,
        size_bytes=memory.total_bytes,
        used_bytes=used,
        available_bytes=memory.free_bytes,
        source=f"nvml:{memory_source(gpu)}",
        quality=quality_of(memory),
        reserved_bytes=memory.reserved_bytes,
        unattributed_bytes=rest.bytes,
        overlap=rest.overlap,
    )


def hidden_pool(gpu: GpuReading, name: str, number: str) -> Pool | None:
    """Build the pool of a GPU in MIG mode whose figures need privileges: at least the sum of its instances.

    Without the size of each instance, the size of the pool is unknown, and there is no pool.
    """
    known = [one.memory.total_bytes for one in gpu.instances if isinstance(one.memory, GpuMemory)]
    if not known or len(known) < len(gpu.instances):
        return None
    absent = gpu.memory if isinstance(gpu.memory, Absent) else Absent.NOT_PERMITTED
    return Pool(
        id=name,
        kind=PoolKind.VRAM,
        label=f"VRAM{number}",
        size_bytes=sum(known),
        used_bytes=absent,
        available_bytes=absent,
        source="nvml:mig_instances",
        quality=Quality.ESTIMATED,
    )


def hbm_pool(gpu: GpuReading, name: str, node: Node, number: str) -> Pool:
    """Build the pool of a GPU that is a NUMA node, from the node's figures: NVML reports only a part of the use."""
    size = node.size_bytes if isinstance(node.size_bytes, int) else 0
    available = node.available_bytes
    pool = Pool(
        id=name,
        kind=PoolKind.HBM,
        label=f"HBM{number}",
        size_bytes=size,
        used_bytes=available if isinstance(available, Absent) else size - available,
        available_bytes=available,
        source=f"sysfs:node{node.id}/meminfo",
        quality=Quality.DERIVED if isinstance(node.quality, Absent) else node.quality,
        free_bytes=node.free_bytes,
    )
    return with_contents(pool, node, gpu.memory.used_bytes) if isinstance(gpu.memory, GpuMemory) else pool


def with_contents(pool: Pool, node: Node, by_driver: int) -> Pool:
    """Add the memory by use: kernel figures of the node, and driver use as NVML reports it."""
    used, free = pool.used_bytes, node.free_bytes
    if isinstance(used, Absent) or isinstance(free, Absent) or not node.contents:
        return pool
    rest = remainder(used, 0, [by_driver, *(part.size_bytes for part in node.contents)])
    if rest.overlap or isinstance(rest.bytes, Absent):
        return replace(pool, unattributed_bytes=0, overlap=True)
    parts = (
        *node.contents,
        Content("devices", by_driver),
        Content("unattributed", rest.bytes),
        Content("page_cache", pool.size_bytes - used - free),
        Content("free", free),
    )
    return replace(pool, unattributed_bytes=rest.bytes, contents=parts)


def quality_of(memory: GpuMemory | Absent) -> Quality:
    is_estimated = isinstance(memory, GpuMemory) and memory.is_estimated
    return Quality.ESTIMATED if is_estimated else Quality.MEASURED


def memory_source(gpu: GpuReading) -> str:
    return f"memory_info_v{gpu.memory.version}" if isinstance(gpu.memory, GpuMemory) else "memory_info"


def count_errors(gpu: GpuReading, xids: Sequence[Xid]) -> Mapping[str, int]:
    """Count memory errors by kind: since the driver was loaded, XIDs since the helper was started."""
    counts = {
        "ecc_corrected": gpu.ecc.corrected,
        "ecc_uncorrected": gpu.ecc.uncorrected,
        "rows_remapped_correctable": gpu.ecc.remapped_correctable,
        "rows_remapped_uncorrectable": gpu.ecc.remapped_uncorrectable,
        "row_remapping_pending": gpu.ecc.remapping_pending,
        "row_remapping_failed": gpu.ecc.remapping_failed,
    }
    known = {kind: int(count) for kind, count in counts.items() if not isinstance(count, Absent)}
    return known | {f"xid_{xid.code}": xid.count for xid in xids}


def held_by_pid(
    gpu: GpuReading, device: str, place: str | None, instances: Collection[str]
) -> Mapping[int, Mapping[str, Bytes]]:
    """Return bytes by process: in its MIG instance if the GPU has instances, otherwise in `place`, if there is one.

    A process in several instances has several rows, which may all be in `place`.
    """
    held: dict[int, dict[str, Bytes]] = {}
    for process, there in _places(gpu, device, place, instances):
        if there is None:
            continue
        places = held.setdefault(process.pid, {})
        places[there] = sum_figures((places[there], process.used_bytes)) if there in places else process.used_bytes
    return held


def find_unplaced(gpu: GpuReading, device: str, place: str | None, instances: Collection[str]) -> frozenset[int]:
    """Return the processes with memory on a GPU whose pool is not known."""
    rows = _places(gpu, device, place, instances)
    return frozenset(process.pid for process, there in rows if there is None and process.used_bytes != 0)


def _places(
    gpu: GpuReading, device: str, place: str | None, instances: Collection[str]
) -> Iterator[tuple[GpuProcess, str | None]]:
    for process in known_or(gpu.processes, ()):
        instance = f"{device}.mig{process.instance}"
        yield process, instance if instance in instances else place
