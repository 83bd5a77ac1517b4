"""Machines with idle GPUs that have memory of their own."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.model import Device, Pool
from memwatch.core.snapshot import Snapshot
from support.sample_parts import vram
from support.sample_snapshots import discrete_gpu

GIB = 1 << 30


def cards(count: int, size: int = 80 * GIB, ram_bytes: int | None = None) -> Snapshot:
    """Return a machine with idle GPUs of one kind, with memory of their own."""
    base = discrete_gpu()
    pools: list[Pool] = [vram(f"gpu{at}.vram", f"GPU {at} VRAM", size, 0, 0) for at in range(count)]
    (ram,) = [pool for pool in base.pools if pool.id == "ram"]
    if ram_bytes is not None:
        ram = replace(ram, available_bytes=ram_bytes, used_bytes=ram.size_bytes - ram_bytes)
    devices: list[Device] = [
        replace(base.devices[0], id=f"gpu{at}", allocates_from=(pool.id,), headroom_after_reclaim_bytes=size)
        for at, pool in enumerate(pools)
    ]
    return replace(base, pools=(ram, *pools), devices=tuple(devices), processes=())
