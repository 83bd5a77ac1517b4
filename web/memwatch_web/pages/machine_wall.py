"""The wall of machines: a tile for each, with ten minutes of its worst pool and all its pools at one scale.

Lengths are in pixels of a picture of WIDTH by HEIGHT, y grows downwards. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.model import PoolKind
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import LEVEL_WORDS, Snapshot
from memwatch.reporting.incidents.readings import find_places
from memwatch.reporting.render import words
from memwatch.reporting.render.drawing import Rectangle
from memwatch.reporting.render.memory_map import GPU_MEMORY
from memwatch.reporting.render.past import split_at_gaps
from memwatch.reporting.render.summary import MANY_GPUS
from memwatch_monitor.history.tiers import History
from memwatch_monitor.neighbours.machines import Machine
from memwatch_monitor.neighbours.tick import PoolTick, Tick
from memwatch_monitor.neighbours.trend import (
    GAP_STEPS,
    POINTS,
    STEP_SECONDS,
    TREND_SECONDS,
    HolderGrowth,
    TrendPoint,
)
from memwatch_web.pages.landscape_past import find_grower

WIDTH, HEIGHT = 200, 74
CURVE_WIDTH, TOWERS_X = 104, 116
# Height of the level above a tower, and of System RAM below many GPUs with the space between both.
CAP, BAND, BAND_GAP = 3, 5, 4
MAX_TOWER_WIDTH, MANY_TOWERS = 40, 8
# Of the size of a pool: its use may fall by MAX_DIP while it rises. Less than MIN_RISE in PAUSE_POINTS is a pause.
MAX_DIP, MIN_RISE, PAUSE_POINTS = 0.01, 0.002, 3
# Largest difference between the curve and the figures.
TOLERANCE = 1.0
# From this age on, minutes are enough.
MINUTES_FROM_SECONDS = 120.0
GPU_KINDS = {kind.value for kind in GPU_MEMORY}
RAM = PoolKind.SYSTEM_RAM.value
# Word of a state in the counts. Machines that send ticks are counted by level.
STATE_WORDS: Mapping[str, str] = {
    "silent": "no answer",
    "starting": "no answer yet",
    "unreachable": "unreachable",
    "refused": "refused",
    "stopped": "stopped",
}
STALE = "stale"


class Part(Struct, frozen=True):
    """Bytes of one kind of holder: `gpu`, `processes`, `unattributed`, or `used` where that is not known.

    Those that a growing process has taken are `level-` with the word of the level.
    """

    holder: str
    place: Rectangle


class Tower(Struct, frozen=True):
    """A pool: its frame, its parts from the ground up, and its level. Without parts its use is not known."""

    name: str
    frame: Rectangle
    parts: tuple[Part, ...]
    level: str


class Wash(Struct, frozen=True):
    """A time at a level above OK."""

    x: int
    width: int
    level: str


class Picture(Struct, frozen=True):
    """`line` and `area`: SVG paths of the worst pool. `silent_from`: where the time without ticks begins.

    `shapes`: class and SVG path of each colour of the towers, as one path is shorter than many rectangles.
    """

    line: str
    area: str
    washes: tuple[Wash, ...]
    silent_from: int | None
    towers: tuple[Tower, ...]
    shapes: tuple[tuple[str, str], ...]
    text: str


class Tile(Struct, frozen=True):
    """A machine. `level`: that of its colour and shape, `unknown` while it sends nothing.

    `holder`: the fastest growing or else the largest process of the pool of the headline, and how fast or large.
    Empty if none is known. `note`: why it sends nothing.
    """

    machine: Machine
    level: str
    word: str
    kind: str
    headline: str
    picture: Picture
    holder: str
    is_growing: bool
    left: str
    note: str


class Count(Struct, frozen=True):
    """Number of machines with one word, and the level of its colour and shape."""

    level: str
    word: str
    number: int


class Fit(Struct, frozen=True):
    """The most memory of one machine. `place`: what can allocate it. `where`: the name of the device or pool."""

    size_bytes: int
    machine: str
    where: str
    place: str
    is_one_memory: bool

    @property
    def text(self) -> str:
        return f"{self.machine}{self.place}"


class Wall(Struct, frozen=True):
    """`strip`: a cell for each tile, as one path for each level.

    `fits`: the most available System RAM, and the largest that fits on a device after reclaim.

    `found`: machines that announce themselves and are no neighbours.
    """

    tiles: tuple[Tile, ...]
    counts: tuple[Count, ...]
    strip: tuple[tuple[str, str], ...]
    fits: tuple[Fit, ...]
    found: tuple[Machine, ...]


class OwnPast(Struct, frozen=True):
    """The part of this machine's tile that is not in its tick."""

    trend: Sequence[TrendPoint] = ()
    growth: HolderGrowth | None = None


def build_wall(machines: Iterable[Machine], read_own: Callable[[Tick], OwnPast]) -> Wall:
    """Return the tiles in the order of the machines. `read_own`: the past of this machine."""
    listed = list(machines)
    tiles = tuple(_build_tile(one, read_own) for one in listed if one.state != "found")
    return Wall(
        tiles,
        tuple(count_words(tiles)),
        tuple(draw_strip(tiles)),
        tuple(list_fits(listed)),
        tuple(one for one in listed if one.state == "found"),
    )


def list_fits(machines: Iterable[Machine]) -> Iterator[Fit]:
    """Yield the most that fits in System RAM and on a device. Where both are one memory, it is not named twice."""
    current = [(one.name, one.tick) for one in machines if one.state == "up" and not one.is_late and one.tick]
    in_ram = [
        Fit(pool.available, name, pool.label, " RAM", _is_one_memory(tick))
        for name, tick in current
        for pool in tick.pools
        if pool.kind == RAM and pool.available is not None
    ]
    on_device = [
        Fit(tick.headroom_after_reclaim, name, tick.headroom_of, " GPU", _is_one_memory(tick))
        for name, tick in current
        if tick.headroom_after_reclaim is not None and tick.headroom_of not in {pool.label for pool in tick.pools}
    ]
    ram, device = (max(fits, key=lambda one: one.size_bytes, default=None) for fits in (in_ram, on_device))
    if ram and device and ram.machine == device.machine:
        # A GPU with a carve-out allocates from System RAM as well: then both are that.
        if ram.size_bytes == device.size_bytes or (
            ram.is_one_memory and units.size(ram.size_bytes) == units.size(device.size_bytes)
        ):
            yield replace(ram, place=", CPU or GPU")
            return
        if ram.is_one_memory:
            device = replace(device, place=" GPU, of the same memory")
    yield from filter(None, (ram, device))


def _is_one_memory(tick: Tick) -> bool:
    return all(pool.kind == RAM for pool in tick.pools)


def count_words(tiles: Iterable[Tile]) -> Iterator[Count]:
    """Count the tiles of each word, in the order in which it first occurs."""
    counts = Counter((one.level, one.word) for one in tiles)
    yield from (Count(level, word, number) for (level, word), number in counts.items())


def draw_strip(tiles: Sequence[Tile]) -> Iterator[tuple[str, str]]:
    """Yield the cells of each level: 8 px apart, 6 px wide and 16 px high."""
    for level in dict.fromkeys(one.level for one in tiles):
        cells = [Rectangle(8 * at + 1, 1, 6, 16) for at, one in enumerate(tiles) if one.level == level]
        yield level, "".join(map(_outline, cells))


def build_tile(machine: Machine, own: OwnPast | None = None) -> Tile:
    """Return the tile of a machine. `own`: the past of this machine, None for a neighbour."""
    past = own or OwnPast(machine.trend, machine.growth)
    tick, is_current = machine.tick, machine.state == "up" and not machine.is_late
    level = tick.level if tick and is_current else "unknown"
    pool = find_pool(tick) if tick else None
    growth = past.growth if is_current else None
    is_growing = growth is not None and level not in ("low", "unknown")
    return Tile(
        machine,
        level,
        _word(machine, level),
        tick.kind if tick else "",
        build_headline(machine, pool),
        _draw(machine, pool, past.trend, is_current, is_growing),
        _describe_holder(tick, growth) if tick and is_current else "",
        is_growing,
        _describe_left(tick, pool) if tick and is_current else "",
        "" if is_current else f"last: {machine.text}" if machine.state == "up" else machine.text,
    )


def _build_tile(machine: Machine, read_own: Callable[[Tick], OwnPast]) -> Tile:
    return build_tile(machine, read_own(machine.tick) if machine.is_self and machine.tick else None)


def _word(machine: Machine, level: str) -> str:
    if machine.state == "up":
        return STALE if machine.is_late else words.level(level)
    return STATE_WORDS.get(machine.state, machine.state)


def find_pool(tick: Tick) -> PoolTick | None:
    """Return the pool of the headline: as the sender says, else that with the highest level, then the fullest."""
    named = next((pool for pool in tick.pools if pool.id == tick.worst), None)
    if named is not None:
        return named
    known = [(pool, pool.used / pool.size) for pool in tick.pools if pool.size and pool.used is not None]

    def rank(one: tuple[PoolTick, float]) -> tuple[int, float]:
        level = LEVEL_WORDS.index(one[0].level) if one[0].level in LEVEL_WORDS else -1
        return level, one[1]

    return max(known, key=rank)[0] if known else None


def build_headline(machine: Machine, pool: PoolTick | None) -> str:
    """Return the most urgent figure, or how long there has been none: "No answer for 3 min"."""
    tick, seconds = machine.tick, _roughly(machine.age_seconds)
    if machine.state == "silent":
        return f"No answer for {seconds}"
    if machine.state == "unreachable":
        return f"Unreachable for {seconds}"
    if machine.state == "stopped" and tick:
        return f"Stopped {seconds} ago"
    if machine.state == "refused":
        return "Refused"
    if tick is None:
        return "No answer yet"
    if machine.is_late:
        return f"Stale for {seconds}"
    if tick.headline:
        return tick.headline
    if pool is None or pool.used is None:
        return "No memory data"
    return f"{f'{pool.label} ' * has_several(tick)}{words.ratio(pool.used / pool.size)}"


def _roughly(seconds: float) -> str:
    if seconds < MINUTES_FROM_SECONDS:
        return words.elapsed(seconds)
    return units.duration_of_whole(int(seconds // 60 * 60))


def _describe_holder(tick: Tick, growth: HolderGrowth | None) -> str:
    if growth is not None:
        rate = growth.bytes_per_second
        return f"growing: {growth.name}" if rate is None else f"{growth.name} +{units.size(int(rate))}/s"
    largest = tick.largest_there
    return f"largest: {largest.name} {units.size(largest.bytes_there)}" if largest else ""


def _describe_left(tick: Tick, pool: PoolTick | None) -> str:
    if pool is None or pool.available is None:
        return "— not known how much is left"
    left = f"{words.size_within(pool.available, pool.size)} of {units.size(pool.size)} left"
    place = f", {pool.label}" * has_several(tick)
    return f"{left}{place}{' · more pools' * tick.left_out}"


def has_several(tick: Tick) -> bool:
    """Return True if several pools have a level, so that a figure needs the name of its pool."""
    return sum(pool.level != "unknown" for pool in tick.pools) > 1


def find_growth(grown: Iterable[ProcessGrowth], snapshot: Snapshot, tick: Tick) -> HolderGrowth | None:
    """Return the process of this machine that grows fastest in the pool of the headline.

    None in System RAM if it holds memory of a GPU too, which is what grows while a model loads.
    """
    pool = find_pool(tick)
    mine = next((one for one in snapshot.pools if pool and one.id == pool.id), None)
    fastest = find_grower(grown, mine, snapshot) if mine else None
    if mine is None or fastest is None:
        return None
    held, inside = fastest.process.device_bytes, find_places(snapshot, mine.id).names
    is_elsewhere = any(size for place, size in held.items() if place not in inside)
    if is_elsewhere and mine.kind is PoolKind.SYSTEM_RAM:
        return None
    return HolderGrowth(fastest.process.title, None if is_elsewhere else fastest.bytes_per_second)


def read_own_past(history: History | None, snapshot: Snapshot, tick: Tick, growth: HolderGrowth | None) -> OwnPast:
    """Return ten minutes of this machine's worst pool from its history, and of those that may grow as it does."""
    pool = find_pool(tick)
    if history is None or pool is None or not len(history):
        return OwnPast((), growth)
    # The same buckets for all requests within a step.
    end = (history.end // STEP_SECONDS) * STEP_SECONDS
    start, shift = end - TREND_SECONDS, snapshot.unix - history.end
    ids = [pool.id, *(one.id for one in list_alike(tick, pool) if growth and one is not pool)]
    try:
        used = [history.query(f"pressure.{one}.ratio", start, end, POINTS) for one in ids]
        levels = history.query(f"pressure.{pool.id}.level", start, end, POINTS)
    except KeyError:
        return OwnPast((), growth)
    points = [
        TrendPoint(
            level.boottime + shift + STEP_SECONDS / 2,
            LEVEL_WORDS[int(level.maximum)],
            {one: ratio.average for one, ratio in zip(ids, ratios, strict=True) if ratio.average is not None},
        )
        for level, *ratios in zip(levels, *used, strict=True)
        if ratios[0].average is not None and level.maximum is not None
    ]
    return OwnPast(points, growth)


def list_alike(tick: Tick, worst: PoolTick) -> list[PoolTick]:
    """Return the pools of the worst one's kind that are above OK: what grows may be a job on several GPUs."""
    return [one for one in tick.pools if one.kind == worst.kind and one.level not in ("low", "unknown")]


def _draw(
    machine: Machine, pool: PoolTick | None, trend: Sequence[TrendPoint], is_current: bool, is_growing: bool
) -> Picture:
    tick = machine.tick
    if tick is None:
        return Picture("", "", (), 0, (), (), "no figures yet")
    points = [one for one in trend if tick.unix - one.unix <= TREND_SECONDS + STEP_SECONDS]
    silence = 0.0 if is_current else -(-machine.age_seconds // STEP_SECONDS) * STEP_SECONDS
    end = (points[-1].unix + STEP_SECONDS if points else tick.unix) + silence
    places = [] if pool is None else list(_place(points, tick, pool, end, is_current))
    line, area = draw_curve(places)
    rising = list_alike(tick, pool) if pool and is_growing else []
    grown = {one.id: measure_rise(points, one) for one in rising}
    towers = draw_towers(tick.pools, is_current, grown)
    return Picture(
        line,
        area,
        draw_washes(points, end - silence, end),
        None if is_current else round(CURVE_WIDTH * max(0.0, 1 - silence / TREND_SECONDS)),
        towers,
        tuple(join_shapes(towers)),
        _describe(tick, is_current),
    )


def _x(unix: float, end: float) -> int:
    return round(CURVE_WIDTH * min(1.0, max(0.0, 1 - (end - unix) / TREND_SECONDS)))


def _place(
    points: Sequence[TrendPoint], tick: Tick, pool: PoolTick, end: float, is_current: bool
) -> Iterator[tuple[float, int, int]]:
    """Yield time, x and y of each known use of the pool, and of the last tick at the right edge."""
    for one in points:
        if pool.id in one.used:
            yield one.unix, _x(one.unix, end), _y(one.used[pool.id])
    if is_current and pool.used is not None and pool.size:
        yield tick.unix, CURVE_WIDTH, _y(pool.used / pool.size)


def _y(used: float) -> int:
    return round(HEIGHT * (1 - min(1.0, max(0.0, used))))


def draw_curve(places: Sequence[tuple[float, int, int]]) -> tuple[str, str]:
    """Return the paths of the line and of the area below it. Each piece without a gap is closed by itself."""
    pieces = split_at_gaps(places, GAP_STEPS * STEP_SECONDS)
    drawn = [simplify(piece) for piece in pieces if len(piece) > 1]
    line = "".join(f"M{_join(piece)}" for piece in drawn)
    area = "".join(f"M{piece[0][0]} {HEIGHT}L{_join(piece)}V{HEIGHT}z" for piece in drawn)
    return line, area


def _join(piece: Sequence[tuple[int, int]]) -> str:
    return "L".join(f"{x} {y}" for x, y in piece)


def simplify(piece: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop points that are at most TOLERANCE above or below the line without them: noise makes updates long."""
    kept, anchor, before = [piece[0]], piece[0], piece[0]
    lowest, highest = -inf, inf
    for here in piece[1:]:
        if not lowest <= _slope(anchor, here) <= highest:
            anchor = before
            kept.append(anchor)
            lowest, highest = -inf, inf
        lowest = max(lowest, _slope(anchor, here, -TOLERANCE))
        highest = min(highest, _slope(anchor, here, TOLERANCE))
        before = here
    return [*kept, before]


def _slope(one: tuple[int, int], other: tuple[int, int], more: float = 0.0) -> float:
    return (other[1] + more - one[1]) / max(other[0] - one[0], 0.5)


def draw_washes(points: Sequence[TrendPoint], last: float, end: float) -> tuple[Wash, ...]:
    """Return the times at a level above OK; the last one lasts until `last`, the right edge is at `end`."""
    found: list[Wash] = []
    ends = [*(one.unix for one in points[1:]), last]
    for one, until in zip(points, ends, strict=False):
        begin, stop = _x(one.unix, end), _x(until, end)
        if one.level in ("low", "unknown") or stop <= begin:
            continue
        if found and found[-1].level == one.level and found[-1].x + found[-1].width == begin:
            found[-1] = Wash(found[-1].x, stop - found[-1].x, one.level)
        else:
            found.append(Wash(begin, stop - begin, one.level))
    return tuple(found)


def measure_rise(points: Sequence[TrendPoint], pool: PoolTick) -> int:
    """Return the bytes by which a pool has risen until now, since its use last fell or paused."""
    if pool.used is None:
        return 0
    lowest = now = pool.used / pool.size
    known = [point.used.get(pool.id) for point in reversed(points)]
    for used, earlier in zip_longest(known, known[PAUSE_POINTS:]):
        if used is None or used > lowest + MAX_DIP:
            break
        lowest = min(lowest, used)
        if earlier is not None and used - MIN_RISE < earlier <= used + MAX_DIP:
            break
    return round((now - lowest) * pool.size)


def draw_towers(
    pools: Sequence[PoolTick], is_current: bool, grown: Mapping[str, int] = MappingProxyType({})
) -> tuple[Tower, ...]:
    """Return all pools on one ground at one scale. Below many GPUs, System RAM lies at its own scale.

    `grown`: bytes of pools that a growing process has taken.
    """
    shown = sorted((one for one in pools if one.size), key=lambda one: (one.kind in GPU_KINDS, one.id))
    gpus = [one for one in shown if one.kind in GPU_KINDS]
    band = next((one for one in shown if one.kind == RAM), None) if len(gpus) >= MANY_GPUS else None
    standing = [one for one in shown if one is not band]
    ground = HEIGHT - (BAND + BAND_GAP if band else 0)
    largest = max((one.size for one in standing), default=1)
    gap = 2 if len(standing) <= MANY_TOWERS else 1
    room = WIDTH - TOWERS_X
    width = min(MAX_TOWER_WIDTH, (room - gap * (len(standing) - 1)) / max(1, len(standing)))
    towers = []
    for number, one in enumerate(standing):
        height = round((ground - CAP - 1) * one.size / largest, 1)
        x = round(TOWERS_X + number * (width + gap), 1)
        frame = Rectangle(x, round(ground - height, 1), round(width, 1), height)
        towers.append(_build_tower(one, frame, is_current, grown.get(one.id, 0)))
    if band:
        frame = Rectangle(TOWERS_X, HEIGHT - BAND, room, BAND)
        towers.append(_build_tower(band, frame, is_current, grown.get(band.id, 0), lies=True))
    return tuple(towers)


def _build_tower(pool: PoolTick, frame: Rectangle, is_current: bool, grown: int, lies: bool = False) -> Tower:
    parts: list[Part] = []
    before = 0.0
    for holder, size in _cut_growth(pool, list(_split(pool)), grown) if is_current else ():
        begin, end = before / pool.size, (before + size) / pool.size
        if lies:
            place = Rectangle(
                round(frame.x + frame.width * begin, 1),
                frame.y,
                round(frame.width * (end - begin), 1),
                frame.height,
            )
        else:
            height = round(frame.height * (end - begin), 1)
            place = Rectangle(frame.x, round(frame.ground - frame.height * end, 1), frame.width, height)
        parts.append(Part(holder, place))
        before += size
    return Tower(pool.label, frame, tuple(parts), pool.level if is_current else "unknown")


def join_shapes(towers: Iterable[Tower]) -> Iterator[tuple[str, str]]:
    """Yield the class and the path of all rectangles of each colour: what is used, frames, levels above OK."""
    paths: dict[str, list[str]] = {}
    for tower in towers:
        frame = tower.frame
        for part in tower.parts:
            is_grown = part.holder.startswith("level-")
            name = f"machine-cap {part.holder}" if is_grown else f"hold-{part.holder}"
            paths.setdefault(name, []).append(_outline(part.place))
        if not tower.parts:
            paths.setdefault("machine-unknown", []).append(_outline(frame))
        paths.setdefault("machine-frame", []).append(_outline(frame))
        if tower.level not in ("low", "unknown"):
            cap = Rectangle(frame.x, max(0.0, frame.y - CAP), frame.width, CAP)
            paths.setdefault(f"machine-cap level-{tower.level}", []).append(_outline(cap))
    for name in sorted(paths, key=lambda one: (one.startswith("machine-cap"), one == "machine-frame")):
        yield name, "".join(paths[name])


def _outline(one: Rectangle) -> str:
    return f"M{one.x:g} {one.y:g}h{one.width:g}v{one.height:g}h-{one.width:g}z"


def _split(pool: PoolTick) -> Iterator[tuple[str, int]]:
    """Yield what is used, from the ground up, as far as the sender says who holds it."""
    if pool.used is None:
        return
    if pool.kind in GPU_KINDS:
        yield "gpu", min(pool.used, pool.size)
        return
    left = min(pool.used, pool.size)
    is_split = pool.gpu is not None or pool.processes is not None
    for holder, size in (("gpu", pool.gpu), ("processes", pool.processes)):
        part = min(size or 0, left)
        if part:
            yield holder, part
        left -= part
    if left:
        yield "unattributed" if is_split else "used", left


def _cut_growth(pool: PoolTick, parts: Sequence[tuple[str, int]], grown: int) -> Iterator[tuple[str, int]]:
    """Cut the bytes that a process has grown by off the top of what processes hold, of what GPUs hold in VRAM."""
    holder = next((one for one in ("processes", "used", "gpu") if one in dict(parts)), "")
    for name, size in parts:
        taken = min(grown, size) if name == holder and pool.level not in ("low", "unknown") else 0
        yield from ((one, part) for one, part in ((name, size - taken), (f"level-{pool.level}", taken)) if part)


def _describe(tick: Tick, is_current: bool) -> str:
    pools = [
        f"{pool.label} {'—' if pool.used is None else words.ratio(pool.used / pool.size)}"
        for pool in tick.pools
        if pool.size
    ]
    return f"{'' if is_current else 'last known: '}{', '.join(pools)}"
