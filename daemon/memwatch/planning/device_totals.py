"""The total of a GPU as engines read it, of which they take a fraction, and advice on the fraction.

Needs nothing of the planner.
"""

from __future__ import annotations

import math

from msgspec import Struct

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Architecture, Bytes, Device, Pool, PoolKind, find_root
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size

# Less than this part of a pool is left, and less than this part of the cache is used.
MAX_LEFT_RATIO, MAX_USED_RATIO = 0.1, 0.25
# The advised cache: a multiple of what is used now, and at least a part of what is reserved.
KEPT_TIMES_USED, MIN_KEPT_RATIO = 4, 0.25
STEPS = 20  # fractions are rounded up to 0.05
OPTIONS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}


def pools_of(device: Device, snapshot: Snapshot) -> list[Pool]:
    within = {share.id: share.within for share in snapshot.shares}
    roots = [find_root(place, within) for place in device.allocates_from]
    return [pool for root in roots for pool in snapshot.pools if pool.id == root]


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
    if pool.kind is PoolKind.SYSTEM_RAM or device.architecture is Architecture.UNIFIED:
        return f"{api}'s total: all of System RAM"
    reserve = " without the driver's reserve" if isinstance(pool.reserved_bytes, int) else ""
    return f"{api}'s total: the GPU's memory{reserve}"


class LowerFraction(Struct, frozen=True):
    """A lower fraction of its GPU for a model server. `left_bytes`: what its pool would then have available."""

    option: str
    fraction: float
    pool: Pool
    freed_bytes: int
    left_bytes: int


def find_lower_fraction(engine: Engine, snapshot: Snapshot) -> LowerFraction | None:
    """Return the fraction that keeps the cache in use and frees the rest, None if there is nothing to advise."""
    option, fraction = OPTIONS.get(engine.kind), engine.gpu_fraction
    cache, used = engine.kv_cache_bytes, engine.kv_cache_used_bytes
    if option is None or isinstance(fraction, Absent) or isinstance(cache, Absent) or isinstance(used, Absent):
        return None
    found = find_pool(engine, snapshot)
    if found is None or not cache or used > MAX_USED_RATIO * cache:
        return None
    pool, total = found
    left = pool.available_bytes
    if isinstance(left, Absent) or left > MAX_LEFT_RATIO * pool.size_bytes:
        return None
    kept = max(KEPT_TIMES_USED * used, int(MIN_KEPT_RATIO * cache))
    lower = math.ceil(round((fraction - (cache - kept) / total) * STEPS, 6)) / STEPS
    if not 0 < lower < fraction:
        return None
    freed = int((fraction - lower) * total)
    return LowerFraction(option, lower, pool, freed, left + freed)


def advise(engine: Engine, snapshot: Snapshot) -> str | None:
    """Return a sentence with the option that would leave more memory, None if there is nothing to advise."""
    found = find_lower_fraction(engine, snapshot)
    if found is None:
        return None
    reserved, used = (words_of(one) for one in (engine.kv_cache_bytes, engine.kv_cache_used_bytes))
    left = words_of(found.pool.available_bytes)
    return (
        f"{engine.title} reserved {reserved} of KV cache and uses {used} now; {found.pool.label} has "
        f"{left} left: {found.option} {found.fraction:g} would leave {size(found.left_bytes)}."
    )


def words_of(figure: Bytes) -> str:
    return "" if isinstance(figure, Absent) else size(figure)


def find_pool(engine: Engine, snapshot: Snapshot) -> tuple[Pool, int] | None:
    """Return the pool of an engine on one GPU, and the total that the engine takes its fraction of."""
    within = {share.id: share.within for share in snapshot.shares}
    places = {place for place, held in engine.held_bytes.items() if isinstance(held, int) and held}
    if len(places) != 1:
        return None
    place = places.pop()
    devices = [one for one in snapshot.devices if place in (one.id, *one.allocates_from)]
    devices += [
        one for one in snapshot.devices for share in snapshot.shares if share.id == place and share.device == one.id
    ]
    root = find_root(place, within)
    pool = next((one for one in snapshot.pools if one.id == root), None)
    total = reported_total(devices[0], snapshot) if devices else Absent.NOT_AVAILABLE
    return None if pool is None or isinstance(total, Absent) or total <= 0 else (pool, total)
