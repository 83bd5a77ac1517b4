"""The largest recent changes of pools, shares, swap and processes. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from memwatch.core.model import Absent, Bytes, Pool, PoolKind
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history.tiers import History

WINDOW_SECONDS = 600.0
# The earlier value is an average over this time: a single sample may be a spike.
MIN_HISTORY_SECONDS = 10.0
MAX_CHANGES, MAX_SERIES = 6, 60
MIN_BYTES = 1 << 20

Before = Callable[[str], float | None]


class Change(Struct, frozen=True):
    """A change of one item. `pid` is set for processes."""

    label: str
    before_bytes: int
    after_bytes: int
    pid: int | None = None

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class Changes(Struct, frozen=True):
    """Changes, largest first. `seconds`: the covered time, shorter than the window after a start."""

    seconds: float
    changes: tuple[Change, ...]


def find_changes(snapshot: Snapshot, history: History | None, grown: Iterable[ProcessGrowth]) -> Changes | None:
    """Return the changes, or None without enough history."""
    if history is None or not len(history):
        return None
    then = max(history.end - WINDOW_SECONDS, history.start)
    if history.end - then < MIN_HISTORY_SECONDS:
        return None
    found = [*places(snapshot, lambda name: value_at(history, name, then)), *processes(grown)]
    large = [change for change in found if abs(change.grown_bytes) >= MIN_BYTES]
    large.sort(key=lambda change: (-abs(change.grown_bytes), change.label))
    return Changes(history.end - then, tuple(large[:MAX_CHANGES]))


def value_at(history: History, name: str, boottime: float) -> float | None:
    """Return the average over MIN_HISTORY_SECONDS from a time on, or None without data."""
    try:
        buckets = history.query(name, boottime, boottime + MIN_HISTORY_SECONDS, 1)
    except KeyError:
        return None
    return next((bucket.average for bucket in buckets if bucket.average is not None), None)


def places(snapshot: Snapshot, before: Before) -> Iterator[Change]:
    """Yield the changes of pools, page cache, shares and swap."""
    for pool in snapshot.pools[:MAX_SERIES]:
        yield from _change(pool.label, before(f"pool.{pool.id}.used_bytes"), pool.used_bytes)
        cache = [part.size_bytes for part in pool.contents if part.kind == "page_cache"]
        available, free = (before(f"pool.{pool.id}.{name}_bytes") for name in ("available", "free"))
        if cache and available is not None and free is not None:
            yield from _change(_cache_label(pool), max(0.0, available - free), cache[0])
    for share in snapshot.shares[:MAX_SERIES]:
        yield from _change(snapshot.relation(share), before(f"share.{share.id}.used_bytes"), share.used_bytes)
    if not isinstance(snapshot.swap, Absent):
        yield from _change("swap", before("swap.used_bytes"), snapshot.swap.used_bytes)


def _cache_label(pool: Pool) -> str:
    return "page cache" if pool.kind is PoolKind.SYSTEM_RAM else f"page cache in {pool.label}"


def processes(grown: Iterable[ProcessGrowth]) -> Iterator[Change]:
    for one in grown:
        yield Change(one.process.title, one.from_bytes, one.to_bytes, one.process.pid)


def _change(label: str, before: float | None, after: Bytes) -> Iterator[Change]:
    if before is not None and not isinstance(after, Absent):
        yield Change(label, round(before), after)
