"""The total of a GPU as engines read it, of which they take a fraction. Needs nothing of the planner."""

from __future__ import annotations

from memwatch.core.model import Absent, Architecture, Bytes, Device, Pool, PoolKind
from memwatch.core.snapshot import Snapshot


def pools_of(device: Device, snapshot: Snapshot) -> list[Pool]:
    within = {share.id: share.within for share in snapshot.shares}
    found = []
    for place in device.allocates_from:
        while place in within:
            place = within[place]
        found += [pool for pool in snapshot.pools if pool.id == place]
    return found


def reported_total(device: Device, snapshot: Snapshot) -> Bytes:
    """Return the total that cudaMemGetInfo or hipMemGetInfo report for a GPU, of which engines take a fraction.

    System RAM on GB10 and Jetson (llama.cpp#24933), the limit of a MIG instance or partition, else VRAM without the
    driver's reserve: 79.18 GiB on an H100 of 79.65 GiB. HIP on an APU reports the carve-out, half of System RAM or
    all of it, by version (ROCm/hip#3892, TheRock#4645).
    """
    if device.vendor.upper() not in ("NVIDIA", "AMD") or device.architecture is Architecture.CARVEOUT:
        return Absent.NOT_AVAILABLE
    pools = pools_of(device, snapshot)
    if not pools or len({pool.id for pool in pools}) > 1:
        return Absent.NOT_AVAILABLE
    shares = [share for share in snapshot.shares if share.id in device.allocates_from]
    limits = [share.limit_bytes for share in shares if isinstance(share.limit_bytes, int)]
    pool = pools[0]
    if pool.kind is PoolKind.SYSTEM_RAM:
        return pool.size_bytes if device.vendor.upper() == "NVIDIA" else Absent.NOT_AVAILABLE
    reserved = pool.reserved_bytes if isinstance(pool.reserved_bytes, int) else 0
    return max(limits) if limits else pool.size_bytes - reserved


def describe_total(device: Device, snapshot: Snapshot) -> str:
    """Return the source of a total as a clause."""
    pool, api = pools_of(device, snapshot)[0], "HIP" if device.vendor.upper() == "AMD" else "CUDA"
    if pool.kind is PoolKind.SYSTEM_RAM:
        return f"{api}'s total: all of System RAM"
    reserve = " without the driver's reserve" if isinstance(pool.reserved_bytes, int) else ""
    return f"{api}'s total: the GPU's memory{reserve}"
