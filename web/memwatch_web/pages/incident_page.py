"""GET /incidents and /incidents/ID: what took the memory, and what was killed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.monitor.incident_observer import IncidentObserver
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.services import PageServices


async def incidents(services: PageServices) -> Response:
    monitor = services.monitor
    observer = monitor.features.get(IncidentObserver)
    return HTMLResponse(services.pages.incidents(observer.log.heads(), monitor.simulated, observer.left_out))


async def incident(services: PageServices, request: Request) -> Response:
    found = services.monitor.features.get(IncidentObserver).log.find(request.path_params["incident_id"])
    if found is None:
        raise ProblemError(404, "no such incident: the page /incidents lists those that are kept.")
    return HTMLResponse(services.pages.incident(found, services.monitor.simulated))
