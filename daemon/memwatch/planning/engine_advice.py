"""Advice for model servers that run: a cache that is much larger than what is used, while memory is short."""

from __future__ import annotations

import math

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Pool
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.device_totals import reported_total

# Less than this part of a pool is left, and less than this part of the cache is used.
MAX_LEFT_RATIO, MAX_USED_RATIO = 0.1, 0.25
# The advised cache: a multiple of what is used now, and at least a part of what is reserved.
KEPT_TIMES_USED, MIN_KEPT_RATIO = 4, 0.25
STEPS = 20  # fractions are rounded up to 0.05
OPTIONS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}


def advise(engine: Engine, snapshot: Snapshot) -> str | None:
    """Return a sentence with the option that would leave more memory, None if there is nothing to advise."""
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
    more = left + int((fraction - lower) * total)
    return (
        f"{engine.title} reserved {size(cache)} of KV cache and uses {size(used)} now; {pool.label} has "
        f"{size(left)} left: {option} {lower:g} would leave {size(more)}."
    )


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
    while place in within:
        place = within[place]
    pool = next((one for one in snapshot.pools if one.id == place), None)
    total = reported_total(devices[0], snapshot) if devices else Absent.NOT_AVAILABLE
    return None if pool is None or isinstance(total, Absent) or total <= 0 else (pool, total)
