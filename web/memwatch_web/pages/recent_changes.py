"""What changed most lately, of everything that is remembered. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from memwatch.history.tiers import History
from memwatch.model import Absent, Bytes
from memwatch.processes.growth import Grown
from memwatch.snapshot import Snapshot

WINDOW_SECONDS = 600.0
# What it was then is the mean of so long: a single reading may be a spike.
THEN_SECONDS = 10.0
MOST_CHANGES, MOST_SERIES = 6, 60
LEAST_BYTES = 1 << 20

Before = Callable[[str], float | None]


class Change(Struct, frozen=True):
    """Something that is not what it was. `pid` is a process's."""

    label: str
    before_bytes: int
    after_bytes: int
    pid: int | None = None

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class Changes(Struct, frozen=True):
    """The largest first; of nearly as many seconds as is wanted, or of as many as there are."""

    seconds: float
    changes: tuple[Change, ...]


def changes_of(snapshot: Snapshot, history: History | None, grown: Iterable[Grown]) -> Changes | None:
    """None where there is no past yet to compare with."""
    if history is None or not len(history):
        return None
    then = max(history.end - WINDOW_SECONDS, history.start)
    if history.end - then < THEN_SECONDS:
        return None
    found = [*places(snapshot, lambda name: value_at(history, name, then)), *processes(grown)]
    told = [change for change in found if abs(change.grown_bytes) >= LEAST_BYTES]
    told.sort(key=lambda change: (-abs(change.grown_bytes), change.label))
    return Changes(history.end - then, tuple(told[:MOST_CHANGES]))


def value_at(history: History, name: str, boottime: float) -> float | None:
    """The mean of the seconds that begin then; None where nothing is known of them."""
    try:
        buckets = history.query(name, boottime, boottime + THEN_SECONDS, 1)
    except KeyError:
        return None
    return next((bucket.average for bucket in buckets if bucket.average is not None), None)


def places(snapshot: Snapshot, before: Before) -> Iterator[Change]:
    """Pools, the page cache in them, shares and swap."""
    for pool in snapshot.pools[:MOST_SERIES]:
        yield from _change(pool.label, before(f"pool.{pool.id}.used_bytes"), pool.used_bytes)
        cache = [part.size_bytes for part in pool.contents if part.kind == "page_cache"]
        available, free = (before(f"pool.{pool.id}.{name}_bytes") for name in ("available", "free"))
        if cache and available is not None and free is not None:
            yield from _change(f"page cache in {pool.label}", max(0.0, available - free), cache[0])
    for share in snapshot.shares[:MOST_SERIES]:
        yield from _change(snapshot.relation(share), before(f"share.{share.id}.used_bytes"), share.used_bytes)
    if not isinstance(snapshot.swap, Absent):
        yield from _change("swap", before("swap.used_bytes"), snapshot.swap.used_bytes)


def processes(grown: Iterable[Grown]) -> Iterator[Change]:
    for one in grown:
        yield Change(one.process.name, one.from_bytes, one.to_bytes, one.process.pid)


def _change(label: str, before: float | None, after: Bytes) -> Iterator[Change]:
    if before is not None and not isinstance(after, Absent):
        yield Change(label, round(before), after)
