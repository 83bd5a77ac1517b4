"""The memory map of a pool, or of a limit in no pool, as data for any display: positions are fractions, 0 to 1.

Segments lie where their bytes are and fill the map. Brackets name shares exactly under their bytes. A share that
equals no content (a cgroup's limit) has its own scale instead. MIG instances partition their GPU side by side.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.unattributed import unattributed_bytes
from memwatch.core.leases import Lease
from memwatch.core.model import (
    HELD_BY_DEVICES,
    Absent,
    Bytes,
    Content,
    Pool,
    PoolKind,
    Process,
    Share,
    ShareKind,
    Thresholds,
    known_or,
)
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.engine_view import Drawn, DrawnPart, draw_parts
from memwatch.reporting.render.summary import MANY_GPUS

# Left to right: used, then available.
ORDER = (
    "devices",
    "anonymous",
    "shared_memory",
    "huge_pages",
    "kernel",
    "used",
    "reserved",
    "unattributed",
    "page_cache",
    "available",
    "free",
)
AVAILABLE = frozenset({"page_cache", "available", "free"})
# Each kind of holder has one colour, in every display. Yellow to red are for levels only.
HOLDERS = {
    "devices": "gpu",
    "anonymous": "processes",
    "shared_memory": "shared",
    "huge_pages": "huge",
    "kernel": "kernel",
    "reserved": "kernel",
    "unattributed": "unattributed",
    "page_cache": "reclaimable",
    "available": "free",
    "free": "free",
}
GPU_MEMORY = frozenset({PoolKind.VRAM, PoolKind.HBM, PoolKind.CARVEOUT})
# Smaller processes are not named in the map.
MIN_NAMED_RATIO, MAX_NAMED = 0.015, 6


class Part(Struct, frozen=True):
    """All bytes of one kind of content. `name`: in place of that of the kind."""

    kind: str
    holder: str
    size_bytes: int
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or words.content(self.kind)


class Segment(Struct, frozen=True):
    """One segment: a part, or a named process in it. `basis`: what the size of the process is, such as "RSS"."""

    kind: str
    holder: str
    label: str
    size_bytes: int
    start: float
    width: float
    process: Process | None = None
    basis: str = ""


class Bracket(Struct, frozen=True):
    """Names the bytes above it. `share` is None for a group of segments, such as all processes."""

    label: str
    holder: str
    size_bytes: int
    start: float
    width: float
    share: Share | None = None


class Slice(Struct, frozen=True):
    """A MIG instance: its part of the GPU, and the fraction of it that is used. `unattributed`: the fraction of it
    that is used and that no listed process holds."""

    share: Share
    start: float
    width: float
    used: float | Absent
    unattributed: float = 0.0


class ShareRow(Struct, frozen=True):
    """A share with its own scale. `used`: fraction of its limit, absent without one."""

    share: Share
    depth: int
    used: float | Absent


class LeaseSegment(Struct, frozen=True):
    """Bytes of a lease in the available part of a map. They are not a segment: the pool has them available."""

    lease: Lease
    held_bytes: int
    start: float
    width: float


class Mark(Struct, frozen=True):
    """The threshold of a level."""

    level: str
    threshold: float
    position: float


class Whole(Struct, frozen=True):
    """The full width of a map: a pool, or the limit of a share."""

    id: str
    label: str
    size_bytes: int
    used_bytes: Bytes
    available_bytes: Bytes


class MemoryMap(Struct, frozen=True):
    """One pool or limit to scale. Without segments its use is unknown. `edge`: the end of used memory.

    A limit in no pool has no `pool` but a `share` on a `device`, whose size is unknown.
    """

    whole: Whole
    parts: tuple[Part, ...]
    segments: tuple[Segment, ...]
    brackets: tuple[Bracket, ...]
    slices: tuple[Slice, ...]
    rows: tuple[ShareRow, ...]
    marks: tuple[Mark, ...]
    edge: float | Absent
    leases: tuple[LeaseSegment, ...] = ()
    engine_parts: tuple[DrawnPart, ...] = ()
    pool: Pool | None = None
    share: Share | None = None
    device: str = ""
    device_bytes: Bytes = Absent.NOT_AVAILABLE


def build_maps(snapshot: Snapshot, thresholds: Mapping[str, Thresholds]) -> tuple[MemoryMap, ...]:
    """Return the map of every pool. `thresholds` are by pool id, `Thresholds()` by default."""
    maps = tuple(build_map(pool, snapshot, thresholds.get(pool.id, Thresholds())) for pool in snapshot.pools)
    return tuple(_with_engines(one, snapshot) for one in maps) if snapshot.engines else maps


def _with_engines(one: MemoryMap, snapshot: Snapshot) -> MemoryMap:
    """Add the parts of model servers inside the segments of their processes."""
    segments = [
        Drawn(segment.process.pid, segment.size_bytes, segment.start, segment.width)
        for segment in one.segments
        if segment.process is not None and segment.holder == "gpu"
    ]
    return replace(one, engine_parts=draw_parts(segments, snapshot.engines))


def build_map(pool: Pool, snapshot: Snapshot, thresholds: Thresholds = Thresholds()) -> MemoryMap:  # noqa: B008  frozen
    """Return the map of a pool, without the parts of model servers."""
    inside = _by_parent(snapshot.shares)
    shares = inside.get(pool.id, ())
    parts = build_parts(pool, shares)
    places = {pool.id, *(share.id for share in _walk(pool.id, inside))}
    slices = tuple(build_slices(pool, shares, snapshot))
    return MemoryMap(
        whole=Whole(pool.id, pool.label, pool.size_bytes, pool.used_bytes, pool.available_bytes),
        parts=parts,
        segments=tuple(build_segments(pool, parts, snapshot.processes, places)),
        brackets=() if slices else tuple(build_brackets(pool, parts, shares)),
        slices=slices,
        rows=tuple(build_rows(pool.id, inside)),
        marks=build_marks(pool.size_bytes, pool.set_aside_bytes, thresholds),
        edge=_fraction(pool.used_bytes, pool.size_bytes),
        leases=tuple(build_leases(pool.id, pool.used_bytes, pool.size_bytes, snapshot)) if snapshot.leases else (),
        pool=pool,
    )


def build_limit_maps(snapshot: Snapshot, thresholds: Mapping[str, Thresholds]) -> tuple[MemoryMap, ...]:
    """Return the map of every limit that is in no pool: that of a memory partition."""
    inside = _by_parent(snapshot.shares)
    pools = {pool.id for pool in snapshot.pools}
    maps = tuple(
        _build_limit_map(share, share.limit_bytes, device.name, inside, thresholds.get(share.id, Thresholds()))
        for device in snapshot.devices
        for share in inside.get(device.id, ())
        if device.id not in pools and isinstance(share.limit_bytes, int) and share.limit_bytes
    )
    return tuple(_with_leases(one, snapshot) for one in maps) if snapshot.leases else maps


def _with_leases(one: MemoryMap, snapshot: Snapshot) -> MemoryMap:
    whole = one.whole
    return replace(one, leases=tuple(build_leases(whole.id, whole.used_bytes, whole.size_bytes, snapshot)))


def _build_limit_map(
    share: Share, limit: int, device: str, inside: Mapping[str, tuple[Share, ...]], thresholds: Thresholds
) -> MemoryMap:
    used, left, parts = share.used_bytes, share.left_bytes, limit_parts(share)
    return MemoryMap(
        whole=Whole(share.id, share.label, limit, used, left),
        parts=parts,
        segments=tuple(place_parts(parts, limit)),
        brackets=(),
        slices=(),
        rows=tuple(build_rows(share.id, inside)),
        marks=build_marks(limit, 0, thresholds),
        edge=_fraction(used, limit),
        share=share,
        device=device,
    )


def limit_parts(share: Share) -> tuple[Part, ...]:
    """Return the used and the available part of a limit. Empty if one of them is unknown."""
    used, left = share.used_bytes, share.left_bytes
    if isinstance(used, Absent) or isinstance(left, Absent):
        return ()
    return Part("used", "gpu", used), Part("available", "free", left)


def build_parts(pool: Pool, shares: Sequence[Share] = ()) -> tuple[Part, ...]:
    """Return the contents of a pool in their order. They add up to its size. Empty if its use is unknown."""
    if not pool.size_bytes or isinstance(pool.used_bytes, Absent) or isinstance(pool.available_bytes, Absent):
        return ()
    contents = pool.contents or _plain(pool, pool.used_bytes, pool.available_bytes, shares)
    ordered = order_contents(_with_devices(pool, contents))
    return tuple(
        Part(one.kind, holder_of(one.kind, pool.kind), one.size_bytes, _name_rest(one, pool)) for one in ordered
    )


def _name_rest(one: Content, pool: Pool) -> str:
    """Return a name for a part of used memory: "used" is the figure of all of it."""
    if one.kind != "used" or one.size_bytes == pool.used_bytes:
        return ""
    return "allocated" if pool.kind in GPU_MEMORY else "other used"


def holder_of(kind: str, pool: PoolKind) -> str:
    """Return the kind of holder of a content. Used memory of a GPU is held by the GPU, else by processes."""
    if kind == "used":
        return "gpu" if pool in GPU_MEMORY else "processes"
    return HOLDERS.get(kind, "unattributed")


def order_contents(contents: Iterable[Content]) -> list[Content]:
    return sorted(contents, key=_position)


def _position(part: Content) -> int:
    """Return the position of a content. Unknown kinds are placed with used memory."""
    return ORDER.index(part.kind) if part.kind in ORDER else ORDER.index("unattributed")


def _plain(pool: Pool, used: int, available: int, shares: Sequence[Share]) -> tuple[Content, ...]:
    """Return contents of a pool without any: used and reserved memory, what is known of devices, the rest."""
    reserved = 0 if isinstance(pool.reserved_bytes, Absent) else min(pool.reserved_bytes, used)
    known = 0 if pool.kind in GPU_MEMORY else sum(_held(share) for share in shares)
    devices = known if known <= used - reserved else 0
    unattributed = 0
    if pool.kind in GPU_MEMORY and not isinstance(pool.unattributed_bytes, Absent):
        unattributed = min(pool.unattributed_bytes, used - reserved)
    found = {"devices": devices, "reserved": reserved, "unattributed": unattributed}
    if pool.kind not in GPU_MEMORY and (cache := pool.reclaimable_bytes):
        found |= {"page_cache": cache, "free": available - cache}
        available = 0
    rest = Content("used", used - sum(size for kind, size in found.items() if kind not in AVAILABLE))
    return (
        rest,
        *(Content(kind, size) for kind, size in {**found, "available": available}.items() if size),
    )


def _held(share: Share) -> int:
    figure = share.used_bytes
    return figure if share.kind in HELD_BY_DEVICES and isinstance(figure, int) else 0


def _with_devices(pool: Pool, parts: tuple[Content, ...]) -> tuple[Content, ...]:
    """Move memory that shares explain from unattributed to devices. The remainder stays unattributed."""
    remainder = pool.unattributed_bytes
    sizes = {part.kind: part.size_bytes for part in parts}
    unexplained = sizes.get("unattributed", 0)
    if isinstance(remainder, Absent) or remainder >= unexplained or "devices" in sizes:
        return parts
    rest = tuple(part for part in parts if part.kind != "unattributed")
    return (*rest, Content("devices", unexplained - remainder), Content("unattributed", remainder))


def build_segments(
    pool: Pool, parts: Sequence[Part], processes: Sequence[Process] = (), places: Iterable[str] = ()
) -> Iterator[Segment]:
    """Yield the segments of a pool: its parts, with the largest processes named inside their kind of holder."""
    inside = frozenset(places)
    for part, segment in zip(parts, place_parts(parts, pool.size_bytes), strict=True):
        is_of_processes = part.kind == "anonymous" or (part.kind == "used" and pool.contents)
        if is_of_processes and pool.kind is PoolKind.SYSTEM_RAM:
            resident = [(one.rss_bytes, "RSS", one) for one in processes if isinstance(one.rss_bytes, int)]
            yield from _split(segment, pool.size_bytes, resident)
        elif part.holder == "gpu":
            yield from name_holders(segment, pool.size_bytes, processes, inside)
        else:
            yield from _split(segment, pool.size_bytes, [])


def name_holders(
    segment: Segment, size: int, processes: Iterable[Process], places: Collection[str]
) -> Iterator[Segment]:
    """Name the processes in a segment that hold the most device memory in these places."""
    return _split(segment, size, [(held_in(one, places), "GPU", one) for one in processes])


def held_in(process: Process, places: Collection[str]) -> int:
    return sum(
        figure for place, figure in process.device_bytes.items() if place in places and isinstance(figure, int)
    )


def _split(segment: Segment, size: int, holders: list[tuple[int, str, Process]]) -> Iterator[Segment]:
    """Name the largest processes in a segment as long as they fit into it: resident sets share pages."""
    left, start, named = segment.size_bytes, segment.start, 0
    ranked = [one for one in sorted(holders, key=lambda one: (-one[0], one[2].pid)) if one[0]]
    for held, basis, process in ranked:
        is_rest = held == left and named == len(ranked) - 1
        if held > left or (not is_rest and (held < MIN_NAMED_RATIO * size or named == MAX_NAMED)):
            continue
        width = held / size
        yield replace(
            segment, label=process.title, size_bytes=held, start=start, width=width, process=process, basis=basis
        )
        left, start, named = left - held, start + width, named + 1
    if left or not named:
        label = f"other {segment.label}" if named and segment.kind == "anonymous" else segment.label
        yield replace(segment, label=label, size_bytes=left, start=start, width=left / size)


def place_parts(parts: Sequence[Part], size: int) -> Iterator[Segment]:
    ends = accumulate((part.size_bytes for part in parts), initial=0)
    for part, start in zip(parts, ends, strict=False):
        left = min(1.0, start / size)
        yield Segment(
            part.kind, part.holder, part.label, part.size_bytes, left, min(1.0 - left, part.size_bytes / size)
        )


def build_brackets(pool: Pool, parts: Sequence[Part], shares: Sequence[Share]) -> Iterator[Bracket]:
    """Yield a bracket under each share that is a content, and under all processes and all available memory."""
    size = pool.size_bytes
    for part, segment in zip(parts, place_parts(parts, size), strict=True):
        if part.kind == "devices":
            yield from _bracket_shares(segment, size, shares)
        elif part.kind == "anonymous" and part.size_bytes:
            yield Bracket(part.label, part.holder, part.size_bytes, segment.start, segment.width)
    available = sum(part.size_bytes for part in parts if part.kind in AVAILABLE)
    if available and size:
        yield Bracket("available", "free", available, 1 - available / size, available / size)


def _bracket_shares(devices: Segment, size: int, shares: Sequence[Share]) -> Iterator[Bracket]:
    """Yield the shares side by side under memory of devices, as long as they fit into it."""
    start, left = devices.start, devices.size_bytes
    for share in shares:
        held = _held(share)
        if 0 < held <= left:
            yield Bracket(share.label, devices.holder, held, start, held / size, share)
            start, left = start + held / size, left - held


def build_slices(pool: Pool, shares: Sequence[Share], snapshot: Snapshot) -> Iterator[Slice]:
    """Yield the MIG instances of a GPU side by side."""
    start = 0.0
    for share in shares:
        if share.kind is ShareKind.MIG_INSTANCE and isinstance(share.limit_bytes, int) and pool.size_bytes:
            width = min(share.limit_bytes / pool.size_bytes, 1.0 - start)
            used = share.judged_ratio
            used = used if isinstance(used, Absent) else min(1.0, used)
            rest = known_or(unattributed_bytes(share, snapshot), 0) / share.limit_bytes
            yield Slice(share, start, width, used, min(rest, known_or(used, 0.0)))
            start += width


def build_rows(within: str, inside: Mapping[str, tuple[Share, ...]], depth: int = 0) -> Iterator[ShareRow]:
    """Yield the shares of a place depth-first; inner shares follow theirs."""
    for share in inside.get(within, ()):
        yield ShareRow(share, depth, share.judged_ratio)
        yield from build_rows(share.id, inside, depth + 1)


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
    from memwatch.core.accounting.leased import sum_around  # needed only while there are leases

    start = min(used, size)
    for lease in snapshot.leases:
        held = sum_around([lease], snapshot.shares).get(place, 0)
        width = min(held, size - start)
        if held:
            yield LeaseSegment(lease, held, start / size, width / size)
        start += width


def _fraction(figure: Bytes, whole: int) -> float | Absent:
    if isinstance(figure, Absent):
        return figure
    return min(1.0, figure / whole) if whole else Absent.INCONSISTENT


def _walk(within: str, inside: Mapping[str, tuple[Share, ...]]) -> Iterator[Share]:
    return (row.share for row in build_rows(within, inside))


def _by_parent(shares: Iterable[Share]) -> dict[str, tuple[Share, ...]]:
    inside: dict[str, tuple[Share, ...]] = {}
    for share in shares:
        inside[share.within] = (*inside.get(share.within, ()), share)
    return inside


def split_gpus(maps: Sequence[MemoryMap]) -> tuple[tuple[MemoryMap, ...], tuple[MemoryMap, ...]]:
    """Return the maps of GPUs that are many, and the other maps."""
    gpus = tuple(one for one in maps if one.pool and one.pool.kind in (PoolKind.VRAM, PoolKind.HBM))
    if len(gpus) < MANY_GPUS:
        return (), tuple(maps)
    return gpus, tuple(one for one in maps if one not in gpus)
