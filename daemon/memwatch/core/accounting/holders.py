"""Holders of memory that need attention, and memory of a pool without a known holder. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.accounting.device_memory import DeviceMemory, NpuMemory
from memwatch.core.accounting.memoize import memoize
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Bytes, Device, Pool, PoolKind, Process, Share, ShareKind, sum_figures
from memwatch.core.snapshot import ProcessScan, Snapshot
from memwatch.core.units import size

# A process without a parent is an orphan if it holds this part of a pool.
ORPHAN_RATIO = 0.1
GONE = (
    "Not visible from here: it runs in another PID namespace, or it ended and its memory was not given back. "
    "The GPU's driver lists its PID and memory, /proc has no such process."
)
HIDDEN = (
    "Not visible from here: it runs outside this container or is hidden from this user. The GPU's driver lists its "
    "PID and memory, /proc has no such process."
)
FOREIGN = (
    "Not visible from here: it runs outside this container. The GPU's driver lists its PID and memory; the process "
    "with that PID here is another one."
)
ORPHAN = (
    "Orphan: its parent process has ended, and no service or container supervises it. If it is not needed, end it "
    "with: kill {pid}"
)
UNKNOWN = Absent.NOT_AVAILABLE


def with_large_holders(
    found: Findings,
    memories: Sequence[DeviceMemory | NpuMemory],
    sizes: Mapping[str, int],
    scan: ProcessScan | None,
) -> Findings:
    """Add a row for each process that only a driver lists, and decide which processes are orphans.

    `found` is related: its processes have their device memory. `sizes`: by pool or share.
    """
    processes = with_ghosts(found.processes, found.missing_pids, scan, *memories)
    processes = with_orphans(processes, sizes)
    devices = with_partial_lists(found.devices, processes, found.shares)
    if processes is found.processes and devices is found.devices:
        return found
    return replace(found, processes=processes, devices=devices)


@memoize
def with_ghosts(
    processes: tuple[Process, ...],
    missing: frozenset[int],
    scan: ProcessScan | None,
    *memories: DeviceMemory | NpuMemory,
) -> tuple[Process, ...]:
    """Add the processes that are missing in /proc. A visible one with a reused PID loses their memory."""
    held: dict[int, dict[str, Bytes]] = {}
    for memory in memories if missing else ():
        for pid in missing & memory.held.keys():
            held.setdefault(pid, {}).update(memory.held[pid])
    if not held:
        return processes
    hides = scan is not None and scan.process_list == "partial"
    kept = [_without_device(process) if process.pid in held else process for process in processes]
    seen = {process.pid for process in processes}
    notes = {pid: FOREIGN if hides and pid in seen else HIDDEN if hides else GONE for pid in held}
    return (*kept, *(build_ghost(pid, held[pid], notes[pid]) for pid in sorted(held)))


def build_ghost(pid: int, held: Mapping[str, Bytes], note: str) -> Process:
    """Build a process of which only the device memory is known."""
    known = [figure for figure in held.values() if isinstance(figure, int)]
    return Process(
        pid=pid,
        start_time=UNKNOWN,
        name=UNKNOWN,
        rss_bytes=UNKNOWN,
        footprint_bytes=UNKNOWN,
        footprint_basis="device",
        device_bytes=held,
        pod=UNKNOWN,
        job=UNKNOWN,
        footprint_range=(sum(known), UNKNOWN) if known else None,
        visible=False,
        note=note,
    )


def _without_device(process: Process) -> Process:
    rss = process.rss_bytes
    return replace(process, device_bytes={}, footprint_bytes=rss, footprint_basis="rss", footprint_range=None)


class JudgedProcesses(NamedTuple):
    """The result of the last call of `with_orphans`, and what it was made of."""

    processes: tuple[Process, ...] = ()
    sizes: Mapping[str, int] = {}
    judged: tuple[Process, ...] = ()


# Desktop programs have mostly lost their parent, and the processes rarely change from one tick to the next.
_last = JudgedProcesses()


def with_orphans(processes: tuple[Process, ...], sizes: Mapping[str, int]) -> tuple[Process, ...]:
    """Decide by the size of their device memory which of the processes without a parent are orphans."""
    global _last
    if not has_orphans(processes):
        return processes
    if _last.processes is not processes or _last.sizes != sizes:
        judged = tuple(_judge_orphan(process, sizes) if process.orphan else process for process in processes)
        _last = JudgedProcesses(processes, sizes, judged)
    return _last.judged


@memoize
def has_orphans(processes: tuple[Process, ...]) -> bool:
    """Check for processes without a parent. Reading 300 processes on each tick takes 9 µs."""
    return any(process.orphan for process in processes)


@memoize
def list_ghosts(processes: tuple[Process, ...]) -> tuple[Process, ...]:
    """Return the processes that only a driver lists."""
    return tuple(process for process in processes if not process.visible)


def _judge_orphan(process: Process, sizes: Mapping[str, int]) -> Process:
    is_large = any(
        isinstance(held, int) and sizes.get(place, 0) and held >= ORPHAN_RATIO * sizes[place]
        for place, held in process.device_bytes.items()
    )
    return replace(process, note=ORPHAN.format(pid=process.pid)) if is_large else replace(process, orphan=False)


def with_partial_lists(
    devices: tuple[Device, ...], processes: tuple[Process, ...], shares: Iterable[Share]
) -> tuple[Device, ...]:
    """Mark the process list of each device with memory of processes that are not visible as partial."""
    ghosts = list_ghosts(processes)
    if not ghosts:
        return devices
    owners = {share.id: share.device for share in shares if share.device}
    held: dict[str, list[Bytes]] = {}
    for ghost in ghosts:
        for place, figure in ghost.device_bytes.items():
            held.setdefault(owners.get(place, place), []).append(figure)
    return tuple(_mark(device, held[device.id]) if device.id in held else device for device in devices)


def _mark(device: Device, held: Sequence[Bytes]) -> Device:
    total = sum_figures(held)
    words = "memory of unknown size" if isinstance(total, Absent) else size(total)
    who = "1 process that is" if len(held) == 1 else f"{len(held)} processes that are"
    note = f"{words} is held by {who} not visible from here: see the process list."
    listed = device.process_list
    return replace(
        device,
        process_list=listed if isinstance(listed, Absent) else "partial",
        notes=(*device.notes, note),
    )


# Shares that processes hold; the others are limits or a driver's total.
HELD_BY_PROCESSES = frozenset(
    {
        ShareKind.CUDA_POOL,
        ShareKind.GTT,
        ShareKind.GPU_BUFFERS,
        ShareKind.NPU_BUFFERS,
        ShareKind.MIG_INSTANCE,
    }
)
HIDDEN_HOLDERS = "memory of processes that are not visible from here"
ANYWHERE = "pages of drivers and network cards, and a virtual machine's balloon"
ON_GPUS = {
    "NVIDIA": "driver memory for each CUDA context, GPU page tables, displays",
    "AMD": "driver and firmware memory, GPU page tables, displays",
    "Intel": "driver and firmware memory, displays",
}
IN_RAM = {
    "NVIDIA": "driver page pools, managed memory (cudaMallocManaged), GPU page tables",
    "AMD": "driver page pools (TTM), GPU page tables, buffers without a process (displays)",
    "Intel": "driver buffers without a process (displays), GPU page tables",
    "Apple": "GPU and display buffers that are charged to no process",
}


def describe_causes(pool: Pool, snapshot: Snapshot) -> str:
    """Return a sentence on the usual causes of a pool's unattributed memory; empty if that figure is absent."""
    if isinstance(pool.unattributed_bytes, Absent):
        return ""
    causes = [*_device_causes(pool, snapshot), *([ANYWHERE] if pool.kind is PoolKind.SYSTEM_RAM else [])]
    if hides_processes(snapshot):
        causes.insert(0, HIDDEN_HOLDERS)
    return f"Usually {'; '.join(causes)}." if causes else "Its usual causes are not known."


def unattributed_bytes(share: Share, snapshot: Snapshot) -> Bytes:
    """Return the part of a device's share that no listed process holds.

    Absent if no process is listed, unless the list is complete: the list may not have been readable.
    """
    held = [process.device_bytes[share.id] for process in snapshot.processes if share.id in process.device_bytes]
    lists = [device.process_list for device in snapshot.devices if device.id == share.device]
    known = sum_figures(held) if held or lists == ["complete"] else Absent.NOT_AVAILABLE
    if isinstance(share.used_bytes, Absent) or isinstance(known, Absent):
        return share.used_bytes if isinstance(share.used_bytes, Absent) else known
    return max(0, share.used_bytes - known)


def hides_processes(snapshot: Snapshot) -> bool:
    """Check if memory of hidden processes may be unattributed.

    A process that only a driver lists is a known holder, although it makes the list of its device partial.
    """
    scan = snapshot.process_scan
    if isinstance(scan, ProcessScan) and scan.process_list == "partial":
        return True
    known = {place for process in snapshot.processes if not process.visible for place in process.device_bytes}
    known |= {share.device for share in snapshot.shares if share.id in known and share.device}
    return any(device.process_list == "partial" and device.id not in known for device in snapshot.devices)


def _device_causes(pool: Pool, snapshot: Snapshot) -> list[str]:
    """Return the causes by vendor of the devices that allocate from the pool, directly or through shares."""
    within = {share.id: share.within for share in snapshot.shares}

    def ends_here(place: str) -> bool:
        while place in within:
            place = within[place]
        return place == pool.id

    words = IN_RAM if pool.kind is PoolKind.SYSTEM_RAM else ON_GPUS
    makers = [device.vendor for device in snapshot.devices if any(map(ends_here, device.allocates_from))]
    return [words[maker] for maker in dict.fromkeys(makers) if maker in words]
