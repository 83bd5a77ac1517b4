"""REST: who holds memory. Owners of processes, those that grew most, and one process's PSS when asked for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from memwatch.monitor.loop import Monitor
from memwatch.owners import OWNER_KINDS, OwnerKind
from memwatch.processes.pss import NoPss
from memwatch.render import json as as_json
from memwatch.render.json import JSON_TYPE, answer_bytes
from memwatch.snapshot import Snapshot
from memwatch_web.api.history import instant, refuse_before_1970
from memwatch_web.api.inquiries import Inquiries
from memwatch_web.api.snapshot import json_response
from memwatch_web.asgi.health import current
from memwatch_web.asgi.problems import Problem
from memwatch_web.asgi.render_cache import OncePerTick
from memwatch_web.asgi.single_flight import NotDone

DEFAULT_SINCE_SECONDS = 600.0
PSS_PAUSE_SECONDS = 1.0
DURATION = re.compile(r"([0-9]{1,6})([smh])")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


def create_router(monitor: Monitor, inquiries: Inquiries) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["memory"])
    _add_owners(router, monitor)
    _add_growth(router, monitor)
    _add_pss(router, monitor, inquiries)
    return router


def _add_owners(router: APIRouter, monitor: Monitor) -> None:
    faces = {kind: OncePerTick(_owners_face(kind)) for kind in OWNER_KINDS}

    @router.get("/owners")
    async def owners(
        by: Annotated[OwnerKind, Query(description="Whose processes are added up.")] = "unit",
    ) -> Response:
        """What all processes of each owner hold, devices included, beside what its own cgroup counts; and what
        nobody holds of each pool."""
        return Response(faces[by].plain(current(monitor)), media_type=JSON_TYPE)


def _owners_face(kind: OwnerKind) -> Callable[[Snapshot], bytes]:
    return lambda snapshot: answer_bytes(as_json.owners_json(snapshot, kind), snapshot.simulated)


def _add_growth(router: APIRouter, monitor: Monitor) -> None:
    @router.get("/growth")
    async def growth(
        since: Annotated[str | None, Query(description="10m, Unix seconds or RFC 3339; 10m by default.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    ) -> Response:
        """Which processes grew most since then, up to an hour ago, and which are suspected of a leak."""
        now = current(monitor).unix
        start = since_when(since, now)
        if start >= now:
            raise Problem(422, f"since is {since!r}, which is not in the past: use 10m, 1h or an earlier time.")
        shift = monitor.to_wall(0.0)
        grown = monitor.growth.since(start - shift, start)[:limit]
        answer = {
            "from": start,
            "to": now,
            "processes": [as_json.grown_json(one, monitor.growth.of(one.process), shift) for one in grown],
            "suspects": [as_json.suspect_json(one, shift) for one in monitor.growth.suspects()],
        }
        return json_response(answer, monitor)


def since_when(text: str | None, now: float) -> float:
    """Unix seconds, from how long ago or from a time. Raises Problem."""
    ago = DURATION.fullmatch(text or "")
    if not ago:
        return instant("since", text, now - DEFAULT_SINCE_SECONDS)
    unix = now - int(ago[1]) * UNIT_SECONDS[ago[2]]
    refuse_before_1970("since", unix)
    return unix


class Turnstile:
    """Lets one through, then nobody for a while: the kernel takes long over a large process."""

    def __init__(self, pause_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = pause_seconds
        self._clock = clock
        self._next = 0.0
        self._taken = False

    def enter(self) -> bool:
        if self._taken or self._clock() < self._next:
            return False
        self._taken = True
        return True

    def leave(self) -> None:
        self._taken, self._next = False, self._clock() + self._pause


def _add_pss(router: APIRouter, monitor: Monitor, inquiries: Inquiries) -> None:
    turnstile = Turnstile(PSS_PAUSE_SECONDS)

    refusals: dict[int | str, dict[str, Any]] = {
        403: {"description": "This user may not read it; the sentence says who may."},
        404: {"description": "The process is not listed, or has ended, or the kernel has no such figure."},
        429: {"description": "Another was read within the last second."},
    }

    @router.get("/processes/{pid}/pss", responses=refusals)
    async def pss(pid: Annotated[int, Path(ge=1, lt=1 << 31)]) -> Response:
        """The proportional set size of a listed process, read now; one process a second, as that is dear."""
        process = next((one for one in current(monitor).processes if one.pid == pid), None)
        if process is None:
            raise Problem(404, f"process {pid} is not among those that /api/v1/processes lists.")
        if monitor.simulated:
            raise Problem(404, "these processes are simulated: there is nothing to look into.")
        if not turnstile.enter():
            raise Problem(429, "one PSS a second is read at most; ask again then.", headers={"Retry-After": "1"})
        try:
            found = await inquiries.pss.ask(process)
        except NotDone as error:
            raise Problem(503, f"{error}.", headers={"Retry-After": "60"}) from None
        except NoPss as error:
            raise Problem(404 if error.permitted else 403, f"{error}.") from None
        finally:
            turnstile.leave()
        if found.pid != pid:  # somebody's, who did not wait for it
            raise Problem(503, "another PSS is still being read; ask again.", headers={"Retry-After": "10"})
        return json_response(as_json.pss_json(process, found), monitor)
