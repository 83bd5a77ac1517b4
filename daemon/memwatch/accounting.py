"""From what a driver said to pools that add up and shares inside them. Pure rules, one per architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memwatch.architecture import Verdict, architecture_of
from memwatch.model import (
    Absent,
    Architecture,
    Bytes,
    Content,
    Device,
    Pool,
    PoolKind,
    Quality,
    Share,
    ShareKind,
)
from memwatch.nvml.reading import GpuInstance, GpuMemory, GpuReading, NvmlReading
from memwatch.snapshot import Machine, Node


@dataclass(frozen=True, slots=True)
class Accounts:
    """What becomes of a machine's memory with its GPUs in it: `pools` replaces System RAM as it was given."""

    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]
    devices: tuple[Device, ...]
    machine: Machine


@dataclass(frozen=True, slots=True)
class Holding:
    """What one GPU adds."""

    pool: Pool | None
    shares: tuple[Share, ...]
    device: Device


SENTENCES = {
    "unified": "GPU memory is part of System RAM: what CUDA allocates comes out of the same memory as all else.",
    "discrete": "Each GPU has memory of its own beside System RAM; the two may be added up.",
    "coherent": "The GPU's memory is a NUMA node of this system: MemTotal contains it; here it is counted once.",
    "carveout": "The driver reports only a part of memory that firmware set aside; the GPU can use more than that.",
    "mixed": "GPUs of different kinds: each pool below is memory of its own, each share lies inside one.",
    "unknown": "A GPU is here, and how its memory relates to System RAM could not be established.",
}


def account(pools: Sequence[Pool], nodes: Sequence[Node], machine: Machine, reading: NvmlReading) -> Accounts:
    """Add the GPUs of `reading` to the pools of the host."""
    ram = next((pool for pool in pools if pool.kind is PoolKind.SYSTEM_RAM), None)
    gpus = in_stable_order(reading.gpus)
    verdicts = [architecture_of(gpu, ram.size_bytes if ram else None, nodes, machine.in_container) for gpu in gpus]
    coherent = [verdict.node for verdict in verdicts if verdict.node is not None]
    if ram is not None:
        ram = without_nodes(ram, coherent)
        held = [
            cuda_bytes(gpu)
            for gpu, one in zip(gpus, verdicts, strict=True)
            if one.architecture is Architecture.UNIFIED
        ]
        ram = with_devices(ram, held)
    alone = len(gpus) == 1
    holdings = [
        holding_of(gpu, at, one, ram, alone) for at, (gpu, one) in enumerate(zip(gpus, verdicts, strict=True))
    ]
    others = tuple(pool for pool in pools if pool.kind is not PoolKind.SYSTEM_RAM)
    return Accounts(
        pools=(*([ram] if ram else []), *others, *(one.pool for one in holdings if one.pool is not None)),
        shares=tuple(share for one in holdings for share in one.shares),
        devices=tuple(
            replace(one.device, driver=reading.driver, errors=errors_of(gpu, reading))
            for gpu, one in zip(gpus, holdings, strict=True)
        ),
        machine=with_architecture(machine, [one.device for one in holdings]),
    )


def in_stable_order(gpus: Sequence[GpuReading]) -> list[GpuReading]:
    """By PCI address: NVML's own order may change with a reboot, and ids must not."""
    return sorted(gpus, key=lambda gpu: (str(gpu.pci), gpu.index))


def holding_of(gpu: GpuReading, at: int, verdict: Verdict, ram: Pool | None, alone: bool) -> Holding:
    name = f"gpu{at}"
    pool, shares = _memory_of(gpu, name, verdict, ram, "" if alone else f" {at}")
    instances = tuple(share.id for share in shares if share.kind is ShareKind.MIG_INSTANCE)
    where = pool or (ram if verdict.architecture is Architecture.UNIFIED else None)
    places = instances or ((where.id,) if where else ())
    device = Device(
        id=name,
        vendor="NVIDIA",
        name="NVIDIA GPU" if isinstance(gpu.name, Absent) else gpu.name,
        architecture=verdict.architecture,
        uuid=gpu.uuid,
        pci=gpu.pci,
        allocates_from=places,
        headroom_bytes=headroom_of(verdict.architecture, pool, shares, ram),
        state=gpu.state,
        evidence=verdict.evidence,
    )
    return Holding(pool, shares, device)


def _memory_of(
    gpu: GpuReading, name: str, verdict: Verdict, ram: Pool | None, number: str
) -> tuple[Pool | None, tuple[Share, ...]]:
    if verdict.architecture is Architecture.UNIFIED:
        return None, (cuda_share(gpu, name, number),) if ram else ()
    if verdict.node is not None:
        pool = hbm_pool(gpu, name, verdict.node, number)
        return pool, (nvml_share(gpu, pool),) if isinstance(gpu.memory, GpuMemory) else ()
    if isinstance(gpu.memory, GpuMemory) and gpu.memory.total_bytes:
        kind = PoolKind.CARVEOUT if verdict.architecture is Architecture.CARVEOUT else PoolKind.VRAM
        pool = vram_pool(gpu, gpu.memory, name, kind, number)
        return pool, tuple(mig_share(instance, pool) for instance in gpu.instances)
    if gpu.instances:
        hidden = hidden_pool(gpu, name, number)
        return hidden, tuple(mig_share(instance, hidden) for instance in gpu.instances)
    return None, ()


def cuda_bytes(gpu: GpuReading) -> Bytes:
    """What processes hold of a GPU: exact where every list was read and every process has its figure."""
    if isinstance(gpu.processes, Absent):
        return gpu.processes
    total = 0
    for process in gpu.processes:
        if isinstance(process.used_bytes, Absent):
            return process.used_bytes
        total += process.used_bytes
    return total


def cuda_id(device: str) -> str:
    return f"cuda{device.removeprefix('gpu')}"


def cuda_share(gpu: GpuReading, name: str, number: str) -> Share:
    return Share(
        id=cuda_id(name),
        kind=ShareKind.CUDA_POOL,
        label=f"CUDA Pool{number}",
        within="ram",
        used_bytes=cuda_bytes(gpu),
        source="nvml:processes",
        quality=Quality.MEASURED,
        device=name,
        note="managed memory and the driver's own pages are not in it",
    )


def nvml_share(gpu: GpuReading, pool: Pool) -> Share:
    used = gpu.memory.used_bytes if isinstance(gpu.memory, GpuMemory) else Absent.NOT_AVAILABLE
    return Share(
        id=f"{pool.id}.nvml",
        kind=ShareKind.NVML_USED,
        label="NVML used",
        within=pool.id,
        used_bytes=used,
        source=f"nvml:{memory_source(gpu)}",
        quality=Quality.MEASURED,
        device=pool.id,
        note="page cache and plain allocations on this node are not in it",
    )


def mig_share(instance: GpuInstance, pool: Pool) -> Share:
    memory = instance.memory
    known = isinstance(memory, GpuMemory)
    return Share(
        id=f"{pool.id}.mig{instance.id}",
        kind=ShareKind.MIG_INSTANCE,
        label=f"MIG instance {instance.id}",
        within=pool.id,
        used_bytes=memory.used_bytes if isinstance(memory, GpuMemory) else memory,
        limit_bytes=memory.total_bytes if isinstance(memory, GpuMemory) else memory,
        source="nvml:memory_info_v2" if known else "nvml",
        quality=Quality.MEASURED,
        device=pool.id,
    )


def vram_pool(gpu: GpuReading, memory: GpuMemory, name: str, kind: PoolKind, number: str) -> Pool:
    """`available` is the driver's free, so `used` contains what the driver reserves."""
    used = memory.total_bytes - memory.free_bytes
    reserved = 0 if isinstance(memory.reserved_bytes, Absent) else memory.reserved_bytes
    held = cuda_bytes(gpu)
    rest: Bytes = held if isinstance(held, Absent) else used - reserved - held
    label = "GPU carve-out" if kind is PoolKind.CARVEOUT else "VRAM"
    return Pool(
        id=name,
        kind=kind,
        label=label + number,
        size_bytes=memory.total_bytes,
        used_bytes=used,
        available_bytes=memory.free_bytes,
        source=f"nvml:{memory_source(gpu)}",
        quality=Quality.MEASURED,
        reserved_bytes=memory.reserved_bytes,
        unattributed_bytes=rest if isinstance(rest, Absent) else max(0, rest),
        overlap=not isinstance(rest, Absent) and rest < 0,
    )


def hidden_pool(gpu: GpuReading, name: str, number: str) -> Pool:
    """A GPU in MIG mode whose own figures need privileges: as large, at least, as its instances together."""
    known = [one.memory.total_bytes for one in gpu.instances if isinstance(one.memory, GpuMemory)]
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
    """Memory of a GPU that is a NUMA node: by the node's own figures, since NVML sees only a part of its use."""
    size = node.size_bytes if isinstance(node.size_bytes, int) else 0
    available = node.available_bytes
    return Pool(
        id=name,
        kind=PoolKind.HBM,
        label=f"HBM{number}",
        size_bytes=size,
        used_bytes=available if isinstance(available, Absent) else size - available,
        available_bytes=available,
        source=f"sysfs:node{node.id}/meminfo",
        quality=Quality.DERIVED,
        free_bytes=node.free_bytes,
        unattributed_bytes=Absent.NOT_AVAILABLE
        if gpu.processes is not Absent.NOT_SUPPORTED
        else Absent.NOT_SUPPORTED,
    )


def memory_source(gpu: GpuReading) -> str:
    return f"memory_info_v{gpu.memory.version}" if isinstance(gpu.memory, GpuMemory) else "memory_info"


def without_nodes(ram: Pool, nodes: Sequence[Node]) -> Pool:
    """System RAM without the GPU nodes that MemTotal contains. What it holds by use cannot be told apart then."""
    sizes = [node.size_bytes for node in nodes if isinstance(node.size_bytes, int)]
    if not sizes or isinstance(ram.available_bytes, Absent):
        return ram
    taken = sum(node.available_bytes for node in nodes if isinstance(node.available_bytes, int))
    free = sum(node.free_bytes for node in nodes if isinstance(node.free_bytes, int))
    size = max(0, ram.size_bytes - sum(sizes))
    available = min(size, max(0, ram.available_bytes - taken))
    return replace(
        ram,
        size_bytes=size,
        used_bytes=size - available,
        available_bytes=available,
        free_bytes=ram.free_bytes if isinstance(ram.free_bytes, Absent) else max(0, ram.free_bytes - free),
        unattributed_bytes=Absent.NOT_SUPPORTED,
        contents=(),
        source=f"{ram.source} less GPU nodes",
        quality=Quality.DERIVED,
    )


def with_devices(ram: Pool, held: Sequence[Bytes]) -> Pool:
    """System RAM with what CUDA holds taken out of what nobody holds: it is in no process's own pages."""
    known = sum(figure for figure in held if isinstance(figure, int))
    rest = ram.unattributed_bytes
    if not held or isinstance(rest, Absent):
        return ram
    explained = min(known, rest)
    contents = ram.contents
    if contents and explained:
        kept = [
            replace(one, size_bytes=one.size_bytes - explained) if one.kind == "unattributed" else one
            for one in contents
        ]
        contents = (*kept, Content("devices", explained))
    return replace(ram, unattributed_bytes=rest - explained, overlap=ram.overlap or known > rest, contents=contents)


def headroom_of(architecture: Architecture, pool: Pool | None, shares: Sequence[Share], ram: Pool | None) -> Bytes:
    """What a device could allocate now: the least that is left along its chain. Swap is never capacity."""
    if architecture is Architecture.UNIFIED:
        if ram is None:
            return Absent.NOT_AVAILABLE
        return ram.set_aside_free_bytes if ram.set_aside_bytes else ram.available_bytes
    if pool is None:
        return Absent.NOT_AVAILABLE
    left = [_left(share) for share in shares if share.kind is ShareKind.MIG_INSTANCE]
    if not left:
        return pool.available_bytes
    known = [figure for figure in left if isinstance(figure, int)]
    if not known:
        return left[0]
    return min(max(known), pool.available_bytes) if isinstance(pool.available_bytes, int) else max(known)


def _left(share: Share) -> Bytes:
    if isinstance(share.limit_bytes, Absent):
        return share.limit_bytes
    return (
        share.used_bytes if isinstance(share.used_bytes, Absent) else max(0, share.limit_bytes - share.used_bytes)
    )


def errors_of(gpu: GpuReading, reading: NvmlReading) -> Mapping[str, int]:
    """Memory errors by kind: counts since the driver was loaded, XIDs since the helper was started."""
    counts = {
        "ecc_corrected": gpu.ecc.corrected,
        "ecc_uncorrected": gpu.ecc.uncorrected,
        "rows_remapped_correctable": gpu.ecc.remapped_correctable,
        "rows_remapped_uncorrectable": gpu.ecc.remapped_uncorrectable,
    }
    known = {kind: count for kind, count in counts.items() if not isinstance(count, Absent)}
    return known | {f"xid_{xid.code}": xid.count for xid in reading.xids if xid.gpu_uuid == gpu.uuid}


def with_architecture(machine: Machine, devices: Sequence[Device]) -> Machine:
    kinds = {device.architecture.value for device in devices}
    if not kinds:
        return machine
    word = kinds.pop() if len(kinds) == 1 else "mixed"
    return replace(machine, architecture=word, explanation=SENTENCES[word])


def device_bytes_by_pid(reading: NvmlReading, accounts: Accounts) -> Mapping[int, Mapping[str, Bytes]]:
    """What each process holds of each GPU, by the pool or share that the bytes lie in."""
    by_pid: dict[int, dict[str, Bytes]] = {}
    for gpu, device in zip(in_stable_order(reading.gpus), accounts.devices, strict=True):
        if isinstance(gpu.processes, Absent) or not device.allocates_from:
            continue
        for process in gpu.processes:
            place = f"{device.id}.mig{process.instance}"
            if place not in device.allocates_from:
                unified = device.architecture is Architecture.UNIFIED
                place = cuda_id(device.id) if unified else device.id
            by_pid.setdefault(process.pid, {})[place] = process.used_bytes
    return by_pid
