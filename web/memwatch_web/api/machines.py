"""REST endpoints for this machine and its neighbours."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes
from memwatch.core.wire import ABSENT, Shape, Wire
from memwatch.reporting.answers import ListedMachine, MachineHolder, MachinePool, MachineTick
from memwatch_monitor.neighbours.machines import Machine
from memwatch_monitor.neighbours.tick import Tick
from memwatch_web.api.dependencies import ApiServices


class FollowedMachine(ListedMachine, frozen=True):
    """A neighbour with its past, the oldest tick first."""

    recent: Annotated[tuple[MachineTick, ...], Doc("Every tick of its last 120 s.")]
    hour: Annotated[tuple[MachineTick, ...], Doc("A tick for each 10 s of its last hour.")]


MACHINES = Wire((Shape(ListedMachine), Shape(FollowedMachine, order=(..., ABSENT, "recent", "hour"))))


async def machines(services: ApiServices) -> Response:
    """Return this machine and its neighbours, those that need an operator first."""
    return services.json(MACHINES.encode_all(map(build_machine, services.machines(services.current()))))


async def machine(services: ApiServices, name: Annotated[str, Path(max_length=80)]) -> Response:
    """Return a neighbour with its past in its own time: each tick of its last 120 s, and its last hour at 10 s."""
    found = build_machine(services.machine(name))
    past = services.neighbours.past(name)
    recent, hour = (map(build_tick, past.recent), map(build_tick, past.hour)) if past else ((), ())
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return services.json(MACHINES.encode(FollowedMachine(**fields, recent=tuple(recent), hour=tuple(hour))))


def build_machine(one: Machine) -> ListedMachine:
    return ListedMachine(
        one.name,
        one.is_self,
        one.url,
        one.state,
        one.text,
        round(one.age_seconds, 3),
        one.last_tick_unix,
        one.clock_offset_seconds,
        one.words.falling_bytes_per_second if one.words else None,
        build_tick(one.tick) if one.tick else Absent.NOT_AVAILABLE,
    )


def build_tick(tick: Tick) -> MachineTick:
    return MachineTick(
        tick.host,
        tick.unix,
        tick.interval,
        tick.level,
        tick.sentence,
        _known(tick.headroom),
        _known(tick.headroom_after_reclaim),
        tick.headroom_of,
        _known(tick.headroom_size),
        tuple(
            MachinePool(one.id, one.label, one.size, _known(one.used), _known(one.available), one.level)
            for one in tick.pools
        ),
        tick.left_out,
        tick.levels,
        tuple(MachineHolder(one.name, one.bytes, one.held_bytes) for one in tick.holders),
        tick.events,
    )


def _known(figure: int | None) -> Bytes:
    return Absent.NOT_AVAILABLE if figure is None else figure
