"""Geometry of the bars of pools, and of limits in no pool, as fractions of their size (0 to 1). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.accounting.leased import sum_around
from memwatch.accounting.relations import left_of
from memwatch.leases import Lease
from memwatch.model import Absent, Bytes, Content, Pool, Share
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

    @property
    def whole(self) -> Pool:
        return self.pool


class Limit(Struct, frozen=True):
    """The full width of a share's bar: its limit."""

    id: str
    label: str
    size_bytes: int
    used_bytes: Bytes


class LimitBar(Struct, frozen=True):
    """One limit to scale, on the memory of a device, whose size is unknown. Without segments its use is unknown."""

    share: Share
    device: str
    whole: Limit
    available_bytes: Bytes
    segments: tuple[Segment, ...]
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    device_bytes: Bytes = Absent.NOT_AVAILABLE
    leases: tuple[LeaseSegment, ...] = ()


def build_bars(snapshot: Snapshot, thresholds: Mapping[str, Thresholds]) -> tuple[Bar, ...]:
    """Return the bar of every pool. `thresholds` are by pool id, `Thresholds()` by default."""
    inside = _by_parent(snapshot.shares)
    return tuple(
        Bar(
            pool,
            build_segments(pool),
            tuple(build_lanes(pool.id, pool.size_bytes, inside)),
            build_marks(pool.size_bytes, pool.set_aside_bytes, thresholds.get(pool.id, Thresholds())),
            tuple(build_leases(pool.id, pool.used_bytes, pool.size_bytes, snapshot)) if snapshot.leases else (),
        )
        for pool in snapshot.pools
    )


def build_limit_bars(snapshot: Snapshot, thresholds: Mapping[str, Thresholds]) -> tuple[LimitBar, ...]:
    """Return the bar of every limit that is in no pool: that of a memory partition."""
    inside = _by_parent(snapshot.shares)
    bars = tuple(
        _build_limit_bar(share, share.limit_bytes, device.name, inside, thresholds.get(share.id, Thresholds()))
        for device in snapshot.devices
        for share in inside.get(device.id, ())
        if device.id not in {pool.id for pool in snapshot.pools}
        and isinstance(share.limit_bytes, int)
        and share.limit_bytes
    )
    return tuple(_with_leases(bar, snapshot) for bar in bars) if snapshot.leases else bars


def _with_leases(bar: LimitBar, snapshot: Snapshot) -> LimitBar:
    whole = bar.whole
    return replace(bar, leases=tuple(build_leases(whole.id, whole.used_bytes, whole.size_bytes, snapshot)))


def _build_limit_bar(
    share: Share, limit: int, device: str, inside: Mapping[str, tuple[Share, ...]], thresholds: Thresholds
) -> LimitBar:
    used, left = share.used_bytes, left_of(share)
    segments: tuple[Segment, ...] = ()
    if not isinstance(used, Absent) and not isinstance(left, Absent):
        part = min(1.0, used / limit)
        segments = Segment("used", used, 0.0, part), Segment("available", left, part, 1.0 - part)
    whole, lanes = Limit(share.id, share.label, limit, used), build_lanes(share.id, limit, inside)
    return LimitBar(share, device, whole, left, segments, tuple(lanes), build_marks(limit, 0, thresholds))


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


def build_marks(size: int, set_aside: int, thresholds: Thresholds) -> tuple[Mark, ...]:
    """Return the threshold marks. Levels exclude reserved huge pages, so the marks are scaled to the rest."""
    if not size:
        return ()
    aside = set_aside / size
    lines = (("medium", thresholds.medium), ("high", thresholds.high), ("critical", thresholds.critical))
    return tuple(Mark(level, line, aside + line * (1 - aside)) for level, line in lines)


def build_leases(place: str, used: Bytes, size: int, snapshot: Snapshot) -> Iterator[LeaseSegment]:
    """Yield the leases of a place, from the end of used memory on. More than is available has no width."""
    if isinstance(used, Absent) or not size:
        return
    start = min(used, size)
    for lease in snapshot.leases:
        held = sum_around([lease], snapshot.shares).get(place, 0)
        width = min(held, size - start)
        if held:
            yield LeaseSegment(lease, held, start / size, width / size)
        start += width


def build_lanes(
    within: str, whole: int, inside: Mapping[str, tuple[Share, ...]], around: tuple[float, ...] = ()
) -> Iterator[Lane]:
    """Yield the shares of a place depth-first, as fractions of `whole`; inner shares follow theirs."""
    if not whole:
        return
    for share in inside.get(within, ()):
        used = _part(share.used_bytes, whole)
        yield Lane(share, len(around), used, _part(share.limit_bytes, whole), around)
        extent = 1.0 if isinstance(used, Absent) else used
        yield from build_lanes(share.id, whole, inside, (*around, extent))


def _part(figure: int | Absent, whole: int) -> float | Absent:
    return figure if isinstance(figure, Absent) else min(1.0, figure / whole)


def _by_parent(shares: Iterable[Share]) -> dict[str, tuple[Share, ...]]:
    inside: dict[str, tuple[Share, ...]] = {}
    for share in shares:
        inside[share.within] = (*inside.get(share.within, ()), share)
    return inside
