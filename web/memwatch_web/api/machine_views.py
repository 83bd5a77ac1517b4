"""This machine and its neighbours as JSON."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from memwatch.core.model import Absent
from memwatch.core.wire import known
from memwatch.monitor.neighbours.machines import Machine
from memwatch.monitor.neighbours.tick import HolderTick, Tick
from memwatch_web.api.services import Services
from memwatch_web.asgi.problems import ProblemError

Json = dict[str, Any]


async def machines(services: Services) -> Response:
    """Return this machine and its neighbours, those that need an operator first."""
    return services.json([machine_json(one) for one in services.machines(services.current())])


def find_machine(services: Services, name: str) -> Machine:
    """Return a neighbour. Raises ProblemError if there is none of that name."""
    listed = services.machines(services.current())
    neighbours = [one for one in listed if not one.is_self and one.state != "found"]
    for one in neighbours:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in neighbours) or "none is configured"
    raise ProblemError(404, f"no neighbour is named {name[:80]!r}; the neighbours are: {names}.")


def machine_json(one: Machine) -> Json:
    words, tick = one.words, one.tick
    return known(
        name=one.name,
        is_self=one.is_self,
        url=one.url,
        state=one.state,
        text=one.text,
        age_seconds=round(one.age_seconds, 3),
        last_tick_unix=one.last_tick_unix,
        clock_offset_seconds=one.clock_offset_seconds,
        falling_bytes_per_second=words.falling_bytes_per_second if words else None,
        last_tick=Absent.NOT_AVAILABLE if tick is None else tick_json(tick),
    )


def _holder_json(one: HolderTick) -> Json:
    return {"name": one.name, "footprint_bytes": one.bytes, "held_bytes": one.held_bytes}


def tick_json(tick: Tick) -> Json:
    headroom = Absent.NOT_AVAILABLE if tick.headroom is None else tick.headroom
    pools = [
        known(
            id=pool.id,
            label=pool.label,
            size_bytes=pool.size,
            used_bytes=Absent.NOT_AVAILABLE if pool.used is None else pool.used,
            available_bytes=Absent.NOT_AVAILABLE if pool.available is None else pool.available,
            level=pool.level,
        )
        for pool in tick.pools
    ]
    return known(
        host=tick.host,
        unix=tick.unix,
        interval_seconds=tick.interval,
        level=tick.level,
        sentence=tick.sentence,
        headroom_bytes=headroom,
        headroom_of=tick.headroom_of,
        headroom_size_bytes=Absent.NOT_AVAILABLE if tick.headroom_size is None else tick.headroom_size,
        pools=pools,
        left_out=tick.left_out,
        levels=[{"target": one.target, "level": one.level, "reasons": list(one.reasons)} for one in tick.levels],
        holders=[_holder_json(one) for one in tick.holders],
        events=[{"unix": one.unix, "kind": one.kind, "text": one.text} for one in tick.events],
    )
