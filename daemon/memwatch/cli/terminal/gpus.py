"""One line per GPU: a bar of its memory, or what it can allocate of System RAM, and its sensors."""

from __future__ import annotations

from collections.abc import Sequence

from memwatch.cli.terminal.figures import pair, percent, short, spark
from memwatch.cli.terminal.frame import View
from memwatch.cli.terminal.moment import LEVELS, MARKS, STYLES, level_word, share_label
from memwatch.cli.terminal.past import RECENT_SECONDS
from memwatch.cli.terminal.stacks import (
    Place,
    draw_bar,
    draw_slices,
    marks_of,
    merge,
    put_share_names,
)
from memwatch.cli.terminal.style import Line, Span, cells, clip, line_cells, pad
from memwatch.cli.terminal.towers import AXIS, MIN_NARROW
from memwatch.core.model import Absent, Device, Pool, PoolKind, Share, ShareKind, whole_of
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.memory_map import MemoryMap, build_map
from memwatch.reporting.render.tower import MAX_CELLS

SPARK = 12
MAX_NAME = 24


def level_of(place: Place, view: View) -> str:
    return view.moment.levels.get(place.id, "")


def worst_level(place: Place | None, view: View) -> str:
    """Return the highest level of a GPU's memory and of its MIG instances."""
    shares = view.moment.snapshot.shares
    if place is None:
        return ""
    inside = (one for one in shares if one.within == place.id and one.kind is ShareKind.MIG_INSTANCE)
    places: list[Place] = [place, *inside]
    known = [found for one in places if (found := level_of(one, view))]
    return max(known, key=LEVELS.index, default="")


def pool_of(device: Device, view: View) -> Pool | None:
    """Return the pool that is the GPU's own memory, if it has one."""
    own = {device.id, *device.allocates_from, *(share.within for share in mig_of(device, view))}
    pools = view.moment.snapshot.pools
    return next((pool for pool in pools if pool.id in own and pool.kind is not PoolKind.SYSTEM_RAM), None)


def mig_of(device: Device, view: View) -> list[Share]:
    shares = view.moment.snapshot.shares
    return [one for one in shares if one.device == device.id and one.kind is ShareKind.MIG_INSTANCE]


def choose_order(maps: Sequence[MemoryMap], view: View) -> tuple[MemoryMap, ...]:
    """Return the maps in their order, or the worst ones first if there are more than a picture shows."""
    fits = len(maps) * MIN_NARROW + AXIS <= view.width and len(maps) <= MAX_CELLS
    return tuple(maps) if fits else rank_maps(maps, view)


def rank_maps(maps: Sequence[MemoryMap], view: View) -> tuple[MemoryMap, ...]:
    """Sort by the level of a pool and of its MIG instances, then by use, the worst ones first."""
    ratios = {one.target: one.ratio for one in view.moment.snapshot.pressure}

    def rank(one: MemoryMap) -> tuple[int, float]:
        level = worst_level(one.pool or one.share, view)
        return (LEVELS.index(level) if level else -1), ratios.get(one.whole.id, 0.0)

    return tuple(sorted(maps, key=rank, reverse=True))


def short_name(name: str) -> str:
    """Return the name of a GPU without its maker."""
    for word in ("NVIDIA ", "AMD ", "Intel(R) ", "Intel ", "GeForce ", "Apple "):
        name = name.removeprefix(word)
    return name


def gpu_line(device: Device, view: View, name_width: int) -> Line:
    pool = pool_of(device, view)
    if pool is None or pool.kind is PoolKind.CARVEOUT:
        return device_line(device, view, name_width)
    tail = _tail(pool, view)
    ratio, size = percent(pool.used_bytes, pool.size_bytes), pair(pool.used_bytes, pool.size_bytes)
    sensors = pad(sensors_of(device, short_form=True), 9, right=True)
    after = (Span(f" {size:>12}{ratio:>7} "), Span(sensors, "muted"), *tail)
    lead = _lead(device, name_width)
    width = view.width - sum(cells(span.text) for span in (*lead, *after)) - 1
    return (*lead, *gpu_bar(device, pool, view, max(4, width)), *after)


def gpu_bar(device: Device, pool: Pool, view: View, width: int) -> Line:
    drawn = build_map(pool, view.moment.snapshot)
    if mig_of(device, view):
        return draw_slices(drawn.slices, width, view.moment.levels)
    marks = marks_of(pool, view.moment.snapshot.pressure)
    return draw_bar(drawn.segments, width, marks, view.has_colour, view.moment.has_current_processes)


def _lead(device: Device, name_width: int) -> Line:
    name = clip(short_name(device.name), name_width)
    return Span(f" {device.id.upper():<5}", "bold"), Span(pad(name, name_width) + " ")


def _tail(pool: Pool, view: View) -> Line:
    """Return the sparkline, if there is room for it, and the level."""
    level = worst_level(pool, view)
    found = []
    if view.width >= 100:
        found.append(Span(f" {trend_of(pool, view):<{SPARK}}", "accent"))
    return (*found, _level(level, view))


def _level(level: str, view: View) -> Span:
    """Return the level as its mark, with its word if there is room. The width is the same for all levels."""
    word = f" {level_word(level) if level else '':<8}" if view.width >= 100 else ""
    return Span(f" {MARKS.get(level, ' ')}{word}", STYLES.get(level, ""))


def trend_of(place: Place, view: View, kind: str = "pool") -> str:
    """Return the sparkline of the use in the last ten minutes."""
    trend = view.moment.trends.get(f"{kind}.{place.id}.used_bytes")
    if trend is None:
        return ""
    end = view.moment.unix
    return spark(trend.columns(end - RECENT_SECONDS, end, SPARK), whole_of(place))


def device_line(device: Device, view: View, name_width: int) -> Line:
    """Return the line of a GPU without a bar: its bytes are in the picture of their pool."""
    pool = pool_of(device, view)
    found = [*_lead(device, name_width), Span(f"can allocate {_range(device)}")]
    if pool is not None and pool.kind is PoolKind.CARVEOUT:
        found.append(Span(f"   carve-out {pair(pool.used_bytes, pool.size_bytes)}"))
    for api, free in device.api_free_bytes.items():
        if isinstance(free, int):
            found.append(Span(f"   {wording.api(api)} free {short(free)}", "muted"))
    sensors = sensors_of(device)
    found += [Span(f"   {sensors}" if sensors else "", "muted"), *_state(device)]
    return tuple(
        one for number, one in enumerate(found) if number < 3 or line_cells(found[: number + 1]) <= view.width
    )


def _range(device: Device) -> str:
    most, least = device.headroom_after_reclaim_bytes, device.headroom_bytes
    if wording.needs_reclaim(least, most):
        return f"{short(least)} – {short(most)}"
    return short(most)


def _state(device: Device) -> Line:
    return () if device.state == "ok" else (Span(f"   {device.state.replace('_', ' ')}", "bold high"),)


def sensors_of(device: Device, short_form: bool = False) -> str:
    """Return utilization, temperature and, in the long form, power: "94%  61 °C  45 W"."""
    found = []
    busy, celsius, watts = device.busy_ratio, device.temperature_celsius, device.power_watts
    if not isinstance(busy, Absent):
        found.append(f"{busy * 100:3.0f}%" if short_form else f"util {busy * 100:.0f}%")
    if not isinstance(celsius, Absent):
        found.append(f"{celsius:.0f}°C")
    if not short_form and not isinstance(watts, Absent):
        found.append(wording.watts(watts).replace(" ", ""))
    return (" " if short_form else "  ").join(found)


def mig_line(share: Share, view: View, name_width: int) -> Line:
    """Return the line of a MIG instance below its GPU."""
    used, limit = share.used_bytes, share.limit_bytes
    level = level_of(share, view)
    label = share_label(share)
    lead = Span(f" └ {pad(label, max(name_width + 3, cells(label)))} ")
    after: list[Span] = [Span(f" {pair(used, limit):>12}{percent(used, limit):>7} "), Span(" " * 9)]
    if view.width >= 100:
        after.append(Span(f" {trend_of(share, view, 'share'):<{SPARK}}", "accent"))
    after.append(_level(level, view))
    width = max(4, view.width - cells(lead.text) - sum(cells(span.text) for span in after) - 1)
    ratio = share.judged_ratio
    filled = 0 if isinstance(ratio, Absent) else min(width, round(ratio * width))
    colour = level if level in ("high", "critical") else "gpu"
    row = [*[Span("█", colour)] * filled, *[Span("·", "free")] * (width - filled)]
    if view.moment.has_current_processes:
        put_share_names(row, share, filled, view.moment.snapshot.processes)
    return (lead, *merge(row), *after)


def name_width_of(devices: Sequence[Device], view: View) -> int:
    longest = max((cells(short_name(device.name)) for device in devices), default=0)
    return min(longest, MAX_NAME if view.width >= 100 else 14)
