"""Geometry of pool bars, as fractions of the pool size (0 to 1). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from memwatch.accounting.leased import held_by_pool
from memwatch.leases import Lease
from memwatch.model import Absent, Content, Pool, Share
from memwatch.pressure.rules import Thresholds
from memwatch.snapshot import Snapshot

# Left to right: used, then available.
ORDER = (
    "anonymous",
    "shared_memory",
    "huge_pages",
    "kernel",
    "devices",
    "used",
    "reserved",
    "unattributed",
    "page_cache",
    "available",
    "free",
)


class Segment(Struct, frozen=True):
    """One segment of a bar."""

    kind: str
    size_bytes: int
    start: float
    width: float


class Lane(Struct, frozen=True):
    """The bar of one share. `around`: used fractions of the enclosing shares, outermost first."""

    share: Share
    depth: int
    used: float | Absent
    limit: float | Absent
    around: tuple[float, ...]


class LeaseSegment(Struct, frozen=True):
    """Bytes of a lease in the available part of a bar. They are not a segment: the pool has them available."""

    lease: Lease
    held_bytes: int
    start: float
    width: float


class Mark(Struct, frozen=True):
    """The threshold of a level."""

    level: str
    threshold: float
    position: float


class Bar(Struct, frozen=True):
    """One pool to scale. Without segments its use is unknown."""

    pool: Pool
    segments: tuple[Segment, ...]
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    leases: tuple[LeaseSegment, ...] = ()


def build_bars(snapshot: Snapshot, thresholds: Mapping[str, Thresholds]) -> tuple[Bar, ...]:
    """Return the bar of every pool. `thresholds` are by pool id, `Thresholds()` by default."""
    inside = _by_parent(snapshot.shares)
    return tuple(
        Bar(
            pool,
            build_segments(pool),
            tuple(build_lanes(pool, inside)),
            build_marks(pool, thresholds.get(pool.id, Thresholds())),
            tuple(build_leases(pool, snapshot)) if snapshot.leases else (),
        )
        for pool in snapshot.pools
    )


def build_segments(pool: Pool) -> tuple[Segment, ...]:
    """Return the segments of a pool, which add up to its size. Empty if its use is unknown."""
    if not pool.size_bytes or isinstance(pool.used_bytes, Absent) or isinstance(pool.available_bytes, Absent):
        return ()
    parts = pool.contents or _plain(pool, pool.used_bytes, pool.available_bytes)
    segments, start = [], 0
    for part in sorted(_with_devices(pool, parts), key=_place):
        left = start / pool.size_bytes
        segments.append(Segment(part.kind, part.size_bytes, left, part.size_bytes / pool.size_bytes))
        start += part.size_bytes
    return tuple(segments)


def _place(part: Content) -> int:
    """Return the position of a segment. Unknown kinds are placed with used memory."""
    return ORDER.index(part.kind) if part.kind in ORDER else ORDER.index("unattributed")


def _plain(pool: Pool, used: int, available: int) -> tuple[Content, ...]:
    reserved = 0 if isinstance(pool.reserved_bytes, Absent) else min(pool.reserved_bytes, used)
    parts = (Content("used", used - reserved), Content("reserved", reserved), Content("available", available))
    return tuple(part for part in parts if part.kind != "reserved" or reserved)


def _with_devices(pool: Pool, parts: tuple[Content, ...]) -> tuple[Content, ...]:
    """Move memory that shares explain from unattributed to devices. The remainder stays unattributed."""
    remainder = pool.unattributed_bytes
    sizes = {part.kind: part.size_bytes for part in parts}
    unexplained = sizes.get("unattributed", 0)
    if isinstance(remainder, Absent) or remainder >= unexplained or "devices" in sizes:
        return parts
    rest = tuple(part for part in parts if part.kind != "unattributed")
    return (*rest, Content("devices", unexplained - remainder), Content("unattributed", remainder))


def build_marks(pool: Pool, thresholds: Thresholds) -> tuple[Mark, ...]:
    """Return the threshold marks. Levels exclude reserved huge pages, so the marks are scaled to the rest."""
    if not pool.size_bytes:
        return ()
    aside = pool.set_aside_bytes / pool.size_bytes
    lines = (("medium", thresholds.medium), ("high", thresholds.high), ("critical", thresholds.critical))
    return tuple(Mark(level, line, aside + line * (1 - aside)) for level, line in lines)


def build_leases(pool: Pool, snapshot: Snapshot) -> Iterator[LeaseSegment]:
    """Yield the leases of a pool, from the end of used memory on. More than is available has no width."""
    if isinstance(pool.used_bytes, Absent) or not pool.size_bytes:
        return
    start = pool.used_bytes
    for lease in snapshot.leases:
        held = held_by_pool([lease], snapshot.shares).get(pool.id, 0)
        width = min(held, pool.size_bytes - start)
        if held:
            yield LeaseSegment(lease, held, start / pool.size_bytes, width / pool.size_bytes)
        start += width


def build_lanes(
    pool: Pool, inside: Mapping[str, tuple[Share, ...]], within: str | None = None, around: tuple[float, ...] = ()
) -> Iterator[Lane]:
    """Yield the shares of a pool depth-first: each is followed by the shares inside it."""
    if not pool.size_bytes:
        return
    for share in inside.get(within or pool.id, ()):
        used = _part(share.used_bytes, pool.size_bytes)
        yield Lane(share, len(around), used, _part(share.limit_bytes, pool.size_bytes), around)
        extent = 1.0 if isinstance(used, Absent) else used
        yield from build_lanes(pool, inside, share.id, (*around, extent))


def _part(figure: int | Absent, whole: int) -> float | Absent:
    return figure if isinstance(figure, Absent) else min(1.0, figure / whole)


def _by_parent(shares: Iterable[Share]) -> dict[str, tuple[Share, ...]]:
    inside: dict[str, tuple[Share, ...]] = {}
    for share in shares:
        inside[share.within] = (*inside.get(share.within, ()), share)
    return inside
