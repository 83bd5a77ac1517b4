"""The picture of a neighbour: its pools, levels and last ten minutes from the ticks that it sent.

A tick has the use of each pool, and of System RAM what devices and processes hold: less than a snapshot. The
picture has fewer parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.model import Absent, Content, Pool, PoolKind, Quality
from memwatch.core.snapshot import Level, Machine, Pressure, SelfUsage, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import GPU_MEMORY
from memwatch.reporting.render.past import Past, break_at_gaps, list_layers
from memwatch_monitor.neighbours.neighbour import HOUR_STEP_SECONDS
from memwatch_monitor.neighbours.tick import PoolTick, Tick
from memwatch_monitor.neighbours.trend import GAP_STEPS
from memwatch_monitor.render.status_line import build_status_line
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.history_page import PAGE_SECONDS
from memwatch_web.pages.machine_wall import Tile, build_tile
from memwatch_web.pages.picture import Card, PictureQuery, build_card, parse_query
from memwatch_web.pages.picture import picture as draw_own
from memwatch_web.pages.renderer import PageServices

PAST_SECONDS = 600.0
KINDS = {kind.value: kind for kind in PoolKind}
LEVELS = {level.word: level for level in Level}
# Layers of System RAM from the ground up with their names, of memory of a GPU, and of a pool of an unknown kind.
RAM_LAYERS = ("devices", "anonymous", "unattributed", "available")
GPU_LAYERS, OTHER_LAYERS = ("devices", "available"), ("used", "available")
RAM_WORDS = ("GPU", "processes", "unattributed", "")


async def picture(services: PageServices, request: Request) -> Response:
    """Return the picture of the neighbour `machine`, now or at the time `at`, by default that of this machine."""
    query, snapshot = request.query_params, services.current()
    name = query.get("machine")
    if not name:
        return await draw_own(services, request)
    wanted = parse_query(query, snapshot)
    found, past = services.machine(name), services.neighbours.past(name)

    def work() -> bytes:
        ticks = sorted((*past.hour, *past.recent), key=lambda one: one.unix) if past else []
        return services.pages.card(build_neighbour_picture(build_tile(found), ticks, wanted))

    body = await services.query(("picture of a neighbour", str(query), snapshot.seq), PAGE_SECONDS, work)
    return Response(body, media_type="image/svg+xml")


def build_neighbour_picture(tile: Tile, ticks: Sequence[Tick], wanted: PictureQuery) -> Card:
    """Return the picture of a neighbour now, or at `wanted.at`. `ticks`: those that are kept, the oldest first.

    Raises ProblemError if it has sent none, or none of that time is kept.
    """
    machine = tile.machine
    if machine.tick is None:
        raise ProblemError(404, f"{machine.name} has sent nothing yet: {machine.text}. See /machines.")
    tick = machine.tick if wanted.at is None else _find_tick(machine.name, ticks, wanted.at)
    shown = build_shown(tick, machine.name)
    status = build_status_line(shown)
    if wanted.at is None:
        status = replace(status, level=tile.level, headline=tile.headline)
    elif tick.headline:
        status = replace(status, headline=tick.headline)
    pasts = dict(_build_pasts(tick, ticks, is_now=wanted.at is None)) if wanted.form.has_past else {}
    return build_card(shown, status, {}, pasts, {}, wanted.form, wanted.ink)


def _find_tick(name: str, ticks: Sequence[Tick], at: float) -> Tick:
    near = [one for one in ticks if at - GAP_STEPS * HOUR_STEP_SECONDS <= one.unix <= at]
    if not near:
        kept = f"from {words.moment(ticks[0].unix)} to {words.moment(ticks[-1].unix)}" if ticks else "none"
        raise ProblemError(404, f"no tick of {name} of {words.moment(at)} is kept: kept are {kept}.")
    return near[-1]


def build_shown(tick: Tick, name: str) -> Snapshot:
    """Return the part of a snapshot that a tick has."""
    pools = tuple(map(_build_pool, tick.pools))
    levels = {pool.id: LEVELS[pool.level] for pool in tick.pools if pool.level in LEVELS}
    return Snapshot(
        seq=0,
        unix=tick.unix,
        monotonic=0.0,
        boot_id="",
        host=name,
        interval_seconds=tick.interval,
        simulated=tick.simulated,
        machine=Machine(name=tick.kind or Absent.NOT_AVAILABLE),
        self_usage=SelfUsage(Absent.NOT_AVAILABLE, 0.0, 0.0, 0.0, memory_locked=False),
        pools=pools,
        pressure=tuple(
            Pressure(one.id, level, level, one.used_bytes / one.size_bytes, kind=one.kind.value)
            for one in pools
            if (level := levels.get(one.id)) is not None and isinstance(one.used_bytes, int) and one.size_bytes
        ),
    )


def _build_pool(one: PoolTick) -> Pool:
    """Return the pool of a tick. A neighbour may send figures that do not add up: what is above the size is cut."""
    kind = _kind_of(one)
    sizes = _split(one)
    if sizes is None:
        nothing = Absent.NOT_AVAILABLE
        return Pool(one.id, kind, one.label or one.id, one.size, nothing, nothing, "tick", Quality.MEASURED)
    kinds = RAM_LAYERS if len(sizes) == len(RAM_LAYERS) else OTHER_LAYERS
    contents = tuple(Content(part, size) for part, size in zip(kinds, sizes, strict=True) if size)
    used = sum(sizes[:-1])
    return Pool(
        one.id,
        kind,
        one.label or one.id,
        one.size,
        used,
        one.size - used,
        "tick",
        Quality.MEASURED,
        contents=contents,
    )


def _kind_of(one: PoolTick) -> PoolKind:
    """Return the kind of a pool. Early versions send none, and later ones may have others."""
    return KINDS.get(one.kind, PoolKind.SYSTEM_RAM)


def _split(one: PoolTick) -> tuple[int, ...] | None:
    """Return the sizes of the layers of a pool, None if its use is not known."""
    if one.used is None:
        return None
    used = min(one.used, one.size)
    if one.kind != PoolKind.SYSTEM_RAM.value or one.gpu is None or one.processes is None:
        return used, one.size - used
    devices = min(one.gpu, used)
    processes = min(one.processes, used - devices)
    return devices, processes, used - devices - processes, one.size - used


def _build_pasts(tick: Tick, ticks: Sequence[Tick], is_now: bool) -> Iterator[tuple[str, Past]]:
    """Yield the last ten minutes of each pool with at least two ticks in them."""
    window = [one for one in ticks if tick.unix - PAST_SECONDS <= one.unix < tick.unix]
    shown = [*window, tick]
    for pool in tick.pools:
        rows = [(one.unix, next((each for each in one.pools if each.id == pool.id), None)) for one in shown]
        kinds = _list_layers(pool)
        columns = [(unix, _fit(_split(found), len(kinds)) if found else None) for unix, found in rows]
        if sum(sizes is not None for _, sizes in columns) < 2:
            continue
        unknown = (None,) * len(kinds)
        times, filled = break_at_gaps(
            [unix for unix, _ in columns],
            [sizes or unknown for _, sizes in columns],
            GAP_STEPS * HOUR_STEP_SECONDS,
        )
        levels = tuple(
            (start, end, found.level)
            for (start, found), (end, _) in pairwise(rows)
            if found and found.level in LEVELS and LEVELS[found.level] > Level.LOW
        )
        names = RAM_WORDS if kinds == RAM_LAYERS else ()
        word = "now" if is_now else words.clock(tick.unix)[:8]
        yield pool.id, Past(times, times[0], times[-1], list_layers(kinds, filled, names), levels, end_word=word)


def _list_layers(pool: PoolTick) -> tuple[str, ...]:
    if len(_split(pool) or ()) == len(RAM_LAYERS):
        return RAM_LAYERS
    return GPU_LAYERS if _kind_of(pool) in GPU_MEMORY else OTHER_LAYERS


def _fit(sizes: tuple[int, ...] | None, count: int) -> tuple[int, ...] | None:
    """Return the sizes if they are as many as the layers: another version of a neighbour has others."""
    return sizes if sizes is not None and len(sizes) == count else None
