"""REST endpoints for this machine and its neighbours."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes
from memwatch.core.wire import ABSENT, Form, Shape, Wire
from memwatch_monitor.neighbours.machines import Machine
from memwatch_monitor.neighbours.tick import EventTick, HolderTick, PoolTick, ReasonsTick, Tick
from memwatch_web.api.dependencies import ApiServices


class FollowedMachine(Machine, frozen=True, kw_only=True):
    """A neighbour with its past, the oldest tick first."""

    recent: Annotated[tuple[Tick, ...], Doc("Every tick of its last 120 s.")]
    hour: Annotated[tuple[Tick, ...], Doc("A tick for each 10 s of its last hour.")]


def falling_bytes_per_second(
    one: Machine, _: object
) -> Annotated[
    int | None,
    Doc("Loss of available memory in the last 10 s before it fell silent; null without one."),
]:
    return one.words.falling_bytes_per_second if one.words else None


def last_tick(one: Machine, _: object) -> Tick | Absent:
    return one.tick or Absent.NOT_AVAILABLE


def size_bytes(pool: PoolTick, _: object) -> int:
    return pool.size


def used_bytes(pool: PoolTick, _: object) -> Bytes:
    return _known(pool.used)


def available_bytes(pool: PoolTick, _: object) -> Bytes:
    return _known(pool.available)


def interval_seconds(tick: Tick, _: object) -> float:
    return tick.interval


def headroom_bytes(tick: Tick, _: object) -> Annotated[Bytes, Doc("Memory that `headroom_of` can allocate now.")]:
    return _known(tick.headroom)


def headroom_after_reclaim_bytes(
    tick: Tick, _: object
) -> Annotated[Bytes, Doc("The same after reclaim of page cache: the largest of its devices.")]:
    return _known(tick.headroom_after_reclaim)


def headroom_size_bytes(tick: Tick, _: object) -> Annotated[Bytes, Doc("Total memory of `headroom_of`.")]:
    return _known(tick.headroom_size)


def footprint_bytes(holder: HolderTick, _: object) -> int:
    return holder.bytes


def _known(figure: int | None) -> Bytes:
    return Absent.NOT_AVAILABLE if figure is None else figure


LISTED = ("name", "is_self", "url", "state", "text", "age_seconds", "last_tick_unix", "clock_offset_seconds",
          "falling_bytes_per_second", "last_tick")  # fmt: skip
AGE = {"age_seconds": Form(float, lambda seconds: round(seconds, 3))}
MACHINES = Wire(
    (
        Shape(Machine, "ListedMachine", further=(falling_bytes_per_second, last_tick), order=LISTED, forms=AGE),
        Shape(
            FollowedMachine,
            further=(falling_bytes_per_second, last_tick),
            order=(*LISTED, ABSENT, "recent", "hour"),
            forms=AGE,
        ),
        Shape(
            Tick,
            "MachineTick",
            further=(interval_seconds, headroom_bytes, headroom_after_reclaim_bytes, headroom_size_bytes),
            order=("host", "unix", "interval_seconds", "level", "sentence", "headroom_bytes",
                   "headroom_after_reclaim_bytes", "headroom_of", "headroom_size_bytes", "pools", "left_out",
                   "levels", "holders", "events"),
        ),
        Shape(
            PoolTick,
            "MachinePool",
            further=(size_bytes, used_bytes, available_bytes),
            order=("id", "label", "size_bytes", "used_bytes", "available_bytes", "level"),
        ),
        Shape(ReasonsTick, "MachineLevel"),
        Shape(
            HolderTick,
            "MachineHolder",
            further=(footprint_bytes, HolderTick.held_bytes),
            order=("name", "footprint_bytes", "held_bytes"),
        ),
        Shape(EventTick, "MachineEvent"),
    )
)  # fmt: skip


async def machines(services: ApiServices) -> Response:
    """Return this machine and its neighbours, those that need an operator first."""
    return services.json(MACHINES.encode_all(services.machines(services.current())))


async def machine(services: ApiServices, name: Annotated[str, Path(max_length=80)]) -> Response:
    """Return a neighbour with its past in its own time: each tick of its last 120 s, and its last hour at 10 s."""
    found = services.machine(name)
    past = services.neighbours.past(name)
    recent, hour = (past.recent, past.hour) if past else ((), ())
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return services.json(MACHINES.encode(FollowedMachine(**fields, recent=tuple(recent), hour=tuple(hour))))
