"""The end of a neighbour's ticks as a sentence: when, with how much left, held by whom, falling how fast."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from memwatch.core import units
from memwatch.monitor.neighbours.tick import PoolTick, Tick
from memwatch.monitor.render import words

FALL_SECONDS = 10.0
# Below this part of the pool a second, use is steady.
MIN_FALL_RATIO = 0.001


class LastWords(Struct, frozen=True):
    """The last tick, and how fast its fullest pool lost available memory; None if it did not."""

    tick: Tick
    falling_bytes_per_second: int | None
    sentence: str


def tell_last_words(ticks: Sequence[Tick]) -> LastWords | None:
    """Describe the end of these ticks, the oldest first. Times are of the neighbour's own clock."""
    if not ticks:
        return None
    last = ticks[-1]
    pool, falling = last.worst_pool, None
    parts = [f"heartbeat stopped at {words.clock(last.unix)}"]
    if pool is not None and pool.available is not None:
        falling = measure_fall(ticks, pool)
        parts.append(f"{units.size(pool.available)} left in {pool.label}")
    if last.holders:
        parts.append(f"{last.holders[0].name} {units.size(last.holders[0].bytes)}")
    if falling is not None:
        parts.append(f"falling {units.size(falling)}/s")
    return LastWords(last, falling, ", ".join(parts))


def measure_fall(ticks: Sequence[Tick], pool: PoolTick) -> int | None:
    """Return the loss of available memory per second in the last FALL_SECONDS, None if there was none."""
    last = ticks[-1]
    known = [
        (tick.unix, one.available)
        for tick in ticks
        if 0 <= last.unix - tick.unix <= FALL_SECONDS
        for one in tick.pools
        if one.id == pool.id and one.available is not None
    ]
    (began, before), (ended, after) = known[0], known[-1]
    if ended <= began:
        return None
    rate = (before - after) / (ended - began)
    return int(rate) if rate > MIN_FALL_RATIO * pool.size else None
