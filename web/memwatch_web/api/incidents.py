"""REST endpoints for incidents."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from memwatch.monitor.incident_observer import IncidentObserver
from memwatch.monitor.incidents.incident_json import incident_json
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.asgi.problems import ProblemError

MAX_INCIDENTS, MAX_ID = 100, 40


async def incidents(services: ApiServices, limit: Annotated[int, Query(ge=1, le=MAX_INCIDENTS)] = 20) -> Response:
    """Return incidents, newest first: what took the memory, what was killed and by whom, and what came back.

    An incident begins with a critical level (not with full GPU memory alone), a kill, a lost GPU, a gap in the
    samples, or an unclean end.
    """
    found = services.monitor.features.get(IncidentObserver).log.heads()[:limit]
    return services.json([incident_json(one) for one in found])


async def incident(services: ApiServices, incident_id: Annotated[str, Path(max_length=MAX_ID)]) -> Response:
    """Return an incident with its timeline, and with the memory of the largest processes over time."""
    found = services.monitor.features.get(IncidentObserver).log.find(incident_id)
    if found is None:
        raise ProblemError(404, "no such incident: GET /api/v1/incidents lists those that are kept.")
    return services.json(incident_json(found))
