"""What nobody known holds of a pool, and what that usually is on a machine like this. Pure rules."""

from __future__ import annotations

from memwatch.model import Absent, Bytes, Pool, PoolKind, Share, ShareKind, sum_figures
from memwatch.snapshot import ProcessScan, Snapshot

# Shares that processes hold; the others are limits, or a driver's sum.
HELD_BY_PROCESSES = frozenset(
    {
        ShareKind.CUDA_POOL,
        ShareKind.GTT,
        ShareKind.GPU_BUFFERS,
        ShareKind.NPU_BUFFERS,
        ShareKind.MIG_INSTANCE,
    }
)
HIDDEN = "what processes hold that cannot be seen from here"
ANYWHERE = "pages that drivers and network cards keep for themselves, and a virtual machine's balloon"
ON_GPUS = {
    "NVIDIA": "what the driver keeps for each CUDA context, page tables of the GPU, displays",
    "AMD": "what the driver and firmware keep for themselves, page tables of the GPU, displays",
    "Intel": "what the driver and firmware keep for themselves, displays",
}
IN_RAM = {
    "NVIDIA": "the driver's page pools, managed memory (cudaMallocManaged), page tables of the GPU",
    "AMD": "the driver's page pools (TTM), page tables of the GPU, buffers without a process (displays)",
    "Intel": "the driver's buffers without a process (displays), page tables of the GPU",
    "Apple": "buffers of the GPU and of the display that no process is charged for",
}


def describe_causes(pool: Pool, snapshot: Snapshot) -> str:
    """A sentence on what the remainder of a pool usually is here; empty where there is no remainder to explain."""
    if isinstance(pool.unattributed_bytes, Absent):
        return ""
    causes = [*_device_causes(pool, snapshot), *([ANYWHERE] if pool.kind is PoolKind.SYSTEM_RAM else [])]
    if hides_processes(snapshot):
        causes.insert(0, HIDDEN)
    return f"Usually {'; '.join(causes)}." if causes else "Nothing is known of what it usually is."


def unattributed_bytes(share: Share, snapshot: Snapshot) -> Bytes:
    """What of a device's share no listed process holds. No process at all may also mean that nobody could look."""
    held = [process.device_bytes[share.id] for process in snapshot.processes if share.id in process.device_bytes]
    lists = [device.process_list for device in snapshot.devices if device.id == share.device]
    known = sum_figures(held) if held or lists == ["complete"] else Absent.NOT_AVAILABLE
    if isinstance(share.used_bytes, Absent) or isinstance(known, Absent):
        return share.used_bytes if isinstance(share.used_bytes, Absent) else known
    return max(0, share.used_bytes - known)


def hides_processes(snapshot: Snapshot) -> bool:
    """Whether there may be processes that are not seen."""
    scan = snapshot.process_scan
    partial = isinstance(scan, ProcessScan) and scan.process_list == "partial"
    return partial or any(device.process_list == "partial" for device in snapshot.devices)


def _device_causes(pool: Pool, snapshot: Snapshot) -> list[str]:
    """By the makers of the devices that allocate from the pool, by whatever way."""
    within = {share.id: share.within for share in snapshot.shares}

    def ends_here(place: str) -> bool:
        while place in within:
            place = within[place]
        return place == pool.id

    words = IN_RAM if pool.kind is PoolKind.SYSTEM_RAM else ON_GPUS
    makers = [device.vendor for device in snapshot.devices if any(map(ends_here, device.allocates_from))]
    return [words[maker] for maker in dict.fromkeys(makers) if maker in words]
