"""Tables of all routes of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MethodType

from fastapi import Depends, FastAPI
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response

from memwatch_web import plain_routes
from memwatch_web.api import alerts, fit, health, history, incidents, ingest, leases, machines, owners, snapshot
from memwatch_web.api.route import Route
from memwatch_web.asgi.strict_query import refuse_unknown
from memwatch_web.pages.services import PageServices


async def metrics(services: PageServices, request: Request) -> Response:
    """Return metrics in the Prometheus text format, or in OpenMetrics if the Accept header requests it."""
    return services.scrapes.response(request.headers.raw)


NO_INCIDENT = {404: "No such incident."}
NO_LAST_WORDS = {404: "No last words."}
NO_PSS = {
    403: "Permission denied; `detail` describes how to allow it.",
    404: "The process is not listed or has ended, or the kernel does not provide PSS.",
    429: "Rate limit: one read per second.",
}
NO_TEST = {409: "No receiver is configured.", 429: "Rate limit: one test notification per 5 s."}
NO_SILENCE = {404: "No such silence."}
TOO_MANY = {409: "The limit of silences is reached."}
NO_ROOM = {409: "It does not fit, or a limit is reached; `detail` has the available memory and the leases."}
NO_LEASE = {404: "No such lease."}
NO_MACHINE = {404: "No such neighbour."}

# fmt: off
MEMORY = (
    *plain_routes.MEMORY,
    #      method   path                            handler                       answer
    Route("GET",    "/api/v1/processes/{pid}/pss",  owners.pss,                   "Pss",
          refusals=NO_PSS),
    Route("GET",    "/api/v1/owners",               owners.owners,                "Owners"),
    Route("GET",    "/api/v1/growth",               owners.growth,                "Growth"),
    Route("GET",    "/api/v1/events",               snapshot.events,              "Event[]"),
    Route("GET",    "/api/v1/history",              history.history,              "History or text/csv"),
    Route("GET",    "/api/v1/ticks",                history.ticks,                "Tick[]"),
    Route("GET",    "/api/v1/last-words",           history.last_words,           "LastWords",
          refusals=NO_LAST_WORDS),
    Route("GET",    "/api/v1/incidents",            incidents.incidents,          "Incident[]"),
    Route("GET",    "/api/v1/incidents/{incident_id}", incidents.incident,        "Incident",
          refusals=NO_INCIDENT),
    Route("GET",    "/api/v1/stream",               snapshot.stream,              "text/event-stream"),
    Route("GET",    "/api/v1/machines/{name}",      machines.machine,             "FollowedMachine",
          refusals=NO_MACHINE),
    Route("GET",    "/api/v1/fit",                  fit.fit,                      "Fit"),
    Route("POST",   "/api/v1/release",              snapshot.release,             "Release",
          "operator", "collectors close the GPU drivers for a while"),
    Route("GET",    "/metrics",                     metrics,                      "text/plain"),
)
PROGRAMS = (
    *plain_routes.PROGRAMS,
    Route("POST",   "/api/v1/marks",                ingest.marks,                 "MarkReceipt",
          "program", "adds an event"),
    Route("POST",   "/api/v1/reports",              ingest.reports,               "ReportReceipt",
          "program", "replaces the reports of a process"),
    Route("POST",   "/api/v1/leases",               leases.lease,                 "Lease",
          "program", "reserves memory for a process", NO_ROOM),
    Route("DELETE", "/api/v1/leases/{lease_id}",    leases.end,                   "Lease[]",
          "program", "ends a lease", NO_LEASE),
)
ALERTS = (
    *plain_routes.ALERTS,
    Route("POST",   "/api/v1/alerts/test",          alerts.test,                  "AlertTest",
          "operator", "sends a test message to every receiver", NO_TEST),
    Route("POST",   "/api/v1/silences",             alerts.silence,               "Silence[]",
          "operator", "adds a silence", TOO_MANY),
    Route("DELETE", "/api/v1/silences/{silence_id}", alerts.end,                  "Silence[]",
          "operator", "ends a silence", NO_SILENCE),
)
HEALTH = (
    Route("GET",    "/healthz",                     health.healthz,               "Health", "anyone"),
    Route("GET",    "/readyz",                      health.readyz,                "Health", "anyone"),
)
# fmt: on

# Groups of the OpenAPI description.
API: Mapping[str, tuple[Route, ...]] = {"memory": MEMORY, "programs": PROGRAMS, "alerts": ALERTS, "health": HEALTH}


def api_routes() -> Iterable[Route]:
    return (route for group in API.values() for route in group)


def install(app: FastAPI, services: PageServices) -> None:
    """Add the routes of the API, and those of pages: errors name the methods of a path."""
    for tag, routes in API.items():
        for route in routes:
            # FastAPI skips the first parameter of a bound method, the services.
            handler, refuse = MethodType(route.handler, services), [Depends(refuse_unknown)]
            app.add_api_route(route.path, handler, methods=[route.method], tags=[tag], dependencies=refuse)
    app.router.routes.extend(plain_routes.serve_pages(services, routing.Route))
