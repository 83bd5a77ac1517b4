"""Metrics of pools, their contents, shares, and memory that is not a pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from memwatch.core.accounting.leased import held_by_pool
from memwatch.core.model import Absent, Pool, ShareKind
from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.samples import Row, find_devices, gauge

POOL = ("pool", "kind", "device")
POOL_TEXTS = {
    "size": "Physical size of a pool in bytes. Pools do not overlap and may be summed.",
    "used": "Used memory of a pool in bytes; used + available = size.",
    "available": "Memory of a pool that can be allocated without swapping, in bytes.",
    "free": "Free memory of a pool in bytes (MemFree on Linux). Page cache is available, not free.",
    "unattributed": "Used memory of a pool that is not attributed to any holder, in bytes.",
}


def pool_families(snapshot: Snapshot) -> Iterator[Metric]:
    devices = find_devices(snapshot)
    for what, text in POOL_TEXTS.items():
        rows: list[Row] = [
            ((pool.id, pool.kind.value, devices.get(pool.id, "")), getattr(pool, f"{what}_bytes"))
            for pool in snapshot.pools
        ]
        yield gauge(f"pool_{what}_bytes", text, rows, POOL)
    yield leased_family(snapshot, devices)
    parts = [row for pool in snapshot.pools for row in contents_rows(pool, devices.get(pool.id, ""))]
    text = "Contents of a pool in bytes. The contents of a pool add up to its size."
    yield gauge("pool_contents_bytes", text, parts, ("pool", "content", "device"))


def leased_family(snapshot: Snapshot, devices: Mapping[str, str]) -> Metric:
    held = held_by_pool(snapshot.leases, snapshot.shares) if snapshot.leases else {}
    rows: list[Row] = [
        ((pool.id, pool.kind.value, devices.get(pool.id, "")), held.get(pool.id, 0)) for pool in snapshot.pools
    ]
    text = "Available memory of a pool that is leased to programs that have not allocated it yet, in bytes."
    return gauge("pool_leased_bytes", text, rows, POOL)


def contents_rows(pool: Pool, device: str) -> list[Row]:
    return [((pool.id, part.kind, device), part.size_bytes) for part in pool.contents]


def share_families(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("share", "kind", "within", "device")
    rows = [((s.id, s.kind.value, s.within, s.device or ""), s) for s in snapshot.shares]
    text = (
        "Used memory of a share in bytes. A share is part of a pool or of another share: never add shares to pools."
    )
    yield gauge("share_used_bytes", text, [(values, share.used_bytes) for values, share in rows], labels)
    limits = [(values, share.limit_bytes) for values, share in rows]
    yield gauge("share_limit_bytes", "Limit of a share in bytes.", limits, labels)
    cgroups = [(values, s) for values, s in rows if s.kind is ShareKind.CGROUP and isinstance(s.limit_bytes, int)]
    text = "1 if the kernel slows the processes of a cgroup at its limit (memory.high), 0 if it kills them."
    yield gauge("share_limit_throttles", text, [(values, int(s.limit_throttles)) for values, s in cgroups], labels)


def swap_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield swap and compressed memory. zram and zswap are part of the kernel's memory in System RAM."""
    if not isinstance(swap := snapshot.swap, Absent):
        text = "Size of swap in bytes; never counted as memory for a GPU."
        yield gauge("swap_size_bytes", text, [((), swap.size_bytes)])
        yield gauge("swap_used_bytes", "Used swap in bytes.", [((), swap.used_bytes)])
        text = "Size of the pages in zswap before compression, in bytes."
        yield gauge("zswap_stored_bytes", text, [((), swap.zswap_stored_bytes)])
        text = "Memory that zswap uses, in bytes. Part of the kernel's memory in System RAM."
        yield gauge("zswap_memory_bytes", text, [((), swap.zswap_memory_bytes)])
    if not isinstance(zram := snapshot.zram, Absent):
        text = "Size of the data in zram devices before compression, in bytes."
        yield gauge("zram_stored_bytes", text, [((), zram.stored_bytes)])
        text = "Memory that zram devices use, in bytes. Part of the kernel's memory in System RAM."
        yield gauge("zram_memory_bytes", text, [((), zram.memory_bytes)])


def pinned_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield memory that the kernel cannot reclaim, and ZFS's cache, which it can."""
    text = "Memory that programs locked with mlock, in bytes (Mlocked)."
    yield gauge("mlocked_bytes", text, [((), snapshot.kernel.mlocked_bytes)])
    text = "Memory that the kernel cannot reclaim, locked memory included, in bytes (Unevictable)."
    yield gauge("unevictable_bytes", text, [((), snapshot.kernel.unevictable_bytes)])
    if not isinstance(cache := snapshot.zfs_cache, Absent):
        text = "Size of ZFS's cache (ARC) in bytes. The part above its minimum counts as available."
        yield gauge("zfs_cache_bytes", text, [((), cache.size_bytes)])
        text = "Size below which ZFS does not shrink its cache, in bytes."
        yield gauge("zfs_cache_minimum_bytes", text, [((), cache.minimum_bytes)])
