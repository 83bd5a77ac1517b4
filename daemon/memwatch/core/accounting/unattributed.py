"""Memory of a pool without a known holder, and its usual causes on this machine. Pure functions."""

from __future__ import annotations

from memwatch.core.model import Absent, Bytes, Pool, PoolKind, Share, ShareKind, find_root, sum_figures
from memwatch.core.snapshot import ProcessScan, Snapshot

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
HIDDEN = "memory of processes that are not visible from here"
ANYWHERE = "pages of drivers and network cards, and a virtual machine's balloon"
# A driver takes less than this of a GPU, and as much again for the context of each process on it.
MAX_DRIVER_BYTES = 1 << 30
UNLISTED = "memory of a process that the driver does not list, such as one in another container"
DISPLAY = "a display, if one is attached"
ON_GPUS = {
    "NVIDIA": "driver memory for each CUDA context, GPU page tables",
    "AMD": "driver and firmware memory, GPU page tables",
    "Intel": "driver and firmware memory",
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
    causes = _device_causes(pool, snapshot)
    if pool.kind is PoolKind.SYSTEM_RAM:
        causes.append(ANYWHERE)
    elif causes and not _exceeds_drivers(pool, snapshot):
        causes.append(DISPLAY)
    if hides_processes(snapshot):
        causes.insert(0, HIDDEN)
    elif causes and _exceeds_drivers(pool, snapshot):
        causes.insert(0, UNLISTED)
    return f"Usually {'; '.join(causes)}." if causes else "Its usual causes are not known."


def _exceeds_drivers(pool: Pool, snapshot: Snapshot) -> bool:
    """Return True for more memory of a GPU than drivers and displays take."""
    if pool.kind is PoolKind.SYSTEM_RAM or isinstance(pool.unattributed_bytes, Absent):
        return False
    places = {pool.id, *(share.id for share in snapshot.shares if share.within == pool.id)}
    holders = sum(not places.isdisjoint(one.device_bytes) for one in snapshot.processes)
    return pool.unattributed_bytes > MAX_DRIVER_BYTES * (1 + holders)


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
        return find_root(place, within) == pool.id

    words = IN_RAM if pool.kind is PoolKind.SYSTEM_RAM else ON_GPUS
    makers = [device.vendor for device in snapshot.devices if any(map(ends_here, device.allocates_from))]
    return [words[maker] for maker in dict.fromkeys(makers) if maker in words]
