"""REST endpoints for memory by owner, process growth, and the PSS of a process."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from memwatch.core.owners import OWNER_KINDS, OwnerKind
from memwatch.core.processes.process_folder import PssError
from memwatch_monitor.processes import GrowthWatch
from memwatch_monitor.render.owners_json import OWNERS, Growth, GrowthTimes, MeasuredPss, owners_json
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.history_parameters import instant, refuse_before_1970
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.threads import NotCompletedError

DEFAULT_SINCE_SECONDS = 600.0
DURATION = re.compile(r"([0-9]{1,6})([smh])")
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


BY_KIND = {kind: partial(owners_json, kind=kind) for kind in OWNER_KINDS}


async def owners(
    services: ApiServices,
    by: Annotated[OwnerKind, Query(description="Group processes by this kind of owner.")] = "unit",
) -> Response:
    """Return the memory of all processes by owner, including devices and the owner's cgroup, and the unattributed
    memory of each pool."""
    return services.respond_with(BY_KIND[by])


async def growth(
    services: ApiServices,
    since: Annotated[str | None, Query(description="10m, Unix seconds or RFC 3339; 10m by default.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> Response:
    """Return the processes with the most growth since a time up to an hour ago, and suspected leaks."""
    monitor, now = services.monitor, services.current().unix
    start = since_when(since, now)
    if start >= now:
        raise ProblemError(422, f"since is {since!r}: not in the past; use 10m, 1h or an earlier time.")
    shift = monitor.to_wall(0.0)
    tracker = monitor.features.get(GrowthWatch).tracker
    grown = tracker.since(start - shift, start)[:limit]
    times = GrowthTimes(shift, tracker.growth_by_window)
    answer = Growth(start, now, tuple(grown), tuple(tracker.suspects()))
    return services.json(OWNERS.encode(answer, times))


def since_when(text: str | None, now: float) -> float:
    """Parse a duration such as 10m, or a time, to Unix seconds. Raises Problem."""
    ago = DURATION.fullmatch(text or "")
    if not ago:
        return instant("since", text, now - DEFAULT_SINCE_SECONDS, others="10m, 1h, ")
    unix = now - int(ago[1]) * UNIT_SECONDS[ago[2]]
    refuse_before_1970("since", unix)
    return unix


async def pss(services: ApiServices, pid: Annotated[int, Path(ge=1, lt=1 << 31)]) -> Response:
    """Read the proportional set size (PSS) of a listed process. Expensive: limited to one process a second."""
    process = next((one for one in services.current().processes if one.pid == pid), None)
    if process is None:
        raise ProblemError(404, f"no process {pid}; /api/v1/processes lists the available ones.")
    if services.monitor.simulated:
        raise ProblemError(404, "PSS is not available: this is demo data (simulated processes).")
    if not services.pss_turnstile.enter():
        raise ProblemError(
            429, "rate limit: one PSS read per second; retry in a second.", headers={"Retry-After": "1"}
        )
    try:
        found = await services.inquiries().pss.ask(process)
    except NotCompletedError as error:
        raise ProblemError(503, f"{error}.", headers={"Retry-After": "60"}) from None
    except PssError as error:
        raise ProblemError(404 if error.permitted else 403, f"{error}.") from None
    finally:
        services.pss_turnstile.leave()
    if found.pid != pid:  # shared with an earlier request whose client disconnected
        raise ProblemError(
            503, "the PSS of another process is still being read; retry in 10 s.", headers={"Retry-After": "10"}
        )
    return services.json(OWNERS.encode(MeasuredPss(process, found)))
