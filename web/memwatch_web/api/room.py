"""REST endpoint of the steps that make room: which model or process has to go so that a size fits."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.snapshot import Snapshot
from memwatch.planning.need import parse_need
from memwatch.planning.sizes import InvalidInputError
from memwatch.reporting.render.json import JSON_TYPE
from memwatch.reporting.render.room import default_targets, find_room_for, find_spot, room_json
from memwatch.reporting.render.room_candidates import NO_ASKER, Asker
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.asgi.caller import PEER
from memwatch_web.asgi.problems import ProblemError

# Of one target, by listed process, on one core of 2026: 0.3 to 0.8 ms.
SECONDS_PER_PROCESS = 0.0005


async def room(
    services: ApiServices,
    request: Request,
    size: Annotated[
        str, Query(alias="bytes", max_length=80, description="Size, such as 40GiB.", examples=["40GiB"])
    ],
    target: Annotated[
        str,
        Query(max_length=80, description="Device, MIG instance, pool or `cpu`; by default every device."),
    ] = "",
    lease: Annotated[str, Query(max_length=80, description="Lease of the caller, which does not count.")] = "",
) -> Response:
    """Return what would have to go so that a size fits: models, servers and programs in order, each with what it
    frees, its command and its cost. memwatchd stops none. Over the socket file, the caller is not among them."""
    snapshot = services.current()
    try:
        need = parse_need(size, "bytes")
        targets = [find_spot(snapshot, target)] if target else default_targets(snapshot)
    except InvalidInputError as error:
        raise ProblemError(422, f"{error}.") from None
    peer = request.scope.get(PEER)
    asker = find_asker(None if peer is None or snapshot.simulated else peer.pid, snapshot)

    def work() -> bytes:
        return services.json_bytes(room_json(find_room_for(need, snapshot, target, lease, asker)))

    seconds = SECONDS_PER_PROCESS * len(targets) * len(snapshot.processes)
    key = ("room", snapshot.seq, need, target, lease, asker)
    return Response(await services.query(key, seconds, work), media_type=JSON_TYPE)


def find_asker(pid: int | None, snapshot: Snapshot) -> Asker:
    """Return the process that asks, with its unit and container if the snapshot has them."""
    if pid is None:
        return NO_ASKER
    listed = next((one for one in snapshot.processes if one.pid == pid), None)
    found = listed or (snapshot.unlisted.by_pid(pid) if snapshot.unlisted else None)
    return Asker(frozenset({pid}), found.unit, found.container) if found else Asker(frozenset({pid}))
