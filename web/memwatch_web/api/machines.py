"""REST endpoint for a neighbour."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from memwatch_web.api.machine_views import MACHINES, FollowedMachine, find_machine
from memwatch_web.api.services import Services


async def machine(services: Services, name: Annotated[str, Meta(max_length=80)]) -> Response:
    """Return a neighbour with its past in its own time: each tick of its last 120 s, and its last hour at 10 s."""
    found = find_machine(services, name)
    past = services.neighbours.past(name)
    recent, hour = (past.recent, past.hour) if past else ((), ())
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return services.json(MACHINES.encode(FollowedMachine(**fields, recent=tuple(recent), hour=tuple(hour))))
