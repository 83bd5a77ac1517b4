"""Tables of all routes: API and pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MethodType
from typing import Any

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from memwatch.render import json as views
from memwatch_web.api import alerts, fit, health, history, incidents, ingest, leases, machines, owners, snapshot
from memwatch_web.api.route import Route
from memwatch_web.api.snapshot import part
from memwatch_web.asgi import static_files
from memwatch_web.asgi.strict_query import refuse_unknown
from memwatch_web.pages import (
    fit_page,
    handlers,
    history_page,
    incident_page,
    machine_page,
    process_page,
    silence_form,
)
from memwatch_web.pages.handlers import page
from memwatch_web.pages.services import PageServices


async def metrics(services: PageServices, request: Request) -> Response:
    """Return metrics in the Prometheus text format, or in OpenMetrics if the Accept header requests it."""
    return services.scrapes.response(request.headers.raw)


SIMULATED = {404: "Not available for demo data."}
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
    #      method   path                            handler                       answer
    Route("GET",    "/api/v1/snapshot",             part(views.snapshot_json),    "Snapshot"),
    Route("GET",    "/api/v1/pools",                part(views.pools_json),       "Pool[]"),
    Route("GET",    "/api/v1/shares",               part(views.shares_json),      "Share[]"),
    Route("GET",    "/api/v1/devices",              part(views.devices_json),     "Device[]"),
    Route("GET",    "/api/v1/processes",            part(views.processes_json),   "Process[]"),
    Route("GET",    "/api/v1/processes/{pid}/pss",  owners.pss,                   "Pss",
          refusals=NO_PSS),
    Route("GET",    "/api/v1/engines",              part(views.engines_json),     "Engine[]"),
    Route("GET",    "/api/v1/owners",               owners.owners,                "Owners"),
    Route("GET",    "/api/v1/growth",               owners.growth,                "Growth"),
    Route("GET",    "/api/v1/pressure",             part(views.pressure_json),    "Pressure[]"),
    Route("GET",    "/api/v1/collectors",           part(views.collectors_json),  "Collector[]"),
    Route("GET",    "/api/v1/events",               snapshot.events,              "Event[]"),
    Route("GET",    "/api/v1/history",              history.history,              "History or text/csv"),
    Route("GET",    "/api/v1/ticks",                history.ticks,                "Tick[]"),
    Route("GET",    "/api/v1/last-words",           history.last_words,           "LastWords",
          refusals=NO_LAST_WORDS),
    Route("GET",    "/api/v1/incidents",            incidents.incidents,          "Incident[]"),
    Route("GET",    "/api/v1/incidents/{incident_id}", incidents.incident,        "Incident",
          refusals=NO_INCIDENT),
    Route("GET",    "/api/v1/stream",               snapshot.stream,              "text/event-stream"),
    Route("GET",    "/api/v1/machines",             machines.machines,            "ListedMachine[]"),
    Route("GET",    "/api/v1/machines/{name}",      machines.machine,             "FollowedMachine",
          refusals=NO_MACHINE),
    Route("GET",    "/api/v1/fit",                  fit.fit,                      "Fit"),
    Route("GET",    "/api/v1/backends",             snapshot.backends,            "Backends",
          refusals=SIMULATED),
    Route("GET",    "/api/v1/doctor",               snapshot.doctor,              "Examination",
          refusals=SIMULATED),
    Route("POST",   "/api/v1/release",              snapshot.release,             "Release",
          "operator", "collectors close the GPU drivers for a while"),
    Route("GET",    "/metrics",                     metrics,                      "text/plain"),
)
PROGRAMS = (
    Route("POST",   "/api/v1/marks",                ingest.marks,                 "MarkReceipt",
          "program", "adds an event"),
    Route("POST",   "/api/v1/reports",              ingest.reports,               "ReportReceipt",
          "program", "replaces the reports of a process"),
    Route("GET",    "/api/v1/leases",               leases.leases,                "Lease[]"),
    Route("POST",   "/api/v1/leases",               leases.lease,                 "Lease",
          "program", "reserves memory for a process", NO_ROOM),
    Route("DELETE", "/api/v1/leases/{lease_id}",    leases.end,                   "Lease[]",
          "program", "ends a lease", NO_LEASE),
)
ALERTS = (
    Route("GET",    "/api/v1/alerts",               alerts.alerts,                "Alert[]"),
    Route("GET",    "/api/v1/receivers",            alerts.receivers,             "Receiver[]"),
    Route("POST",   "/api/v1/alerts/test",          alerts.test,                  "AlertTest",
          "operator", "sends a test message to every receiver", NO_TEST),
    Route("GET",    "/api/v1/silences",             alerts.silences,              "Silence[]"),
    Route("POST",   "/api/v1/silences",             alerts.silence,               "Silence[]",
          "operator", "adds a silence", TOO_MANY),
    Route("DELETE", "/api/v1/silences/{silence_id}", alerts.end,                  "Silence[]",
          "operator", "ends a silence", NO_SILENCE),
)
HEALTH = (
    Route("GET",    "/healthz",                     health.healthz,               "Health", "anyone"),
    Route("GET",    "/readyz",                      health.readyz,                "Health", "anyone"),
)
PAGES = (
    Route("GET",    "/",                            page("overview"),             "text/html"),
    Route("GET",    "/history",                     history_page.history,         "text/html"),
    Route("GET",    "/history/data",                history_page.history_data,    "application/json"),
    Route("GET",    "/history/picture",             history_page.history_picture, "image/svg+xml"),
    Route("GET",    "/processes",                   handlers.processes,           "text/html"),
    Route("GET",    "/processes/{pid}",             process_page.process,         "text/html"),
    Route("GET",    "/machines",                    page("machines"),             "text/html"),
    Route("GET",    "/machines/{name}",             machine_page.machine,         "text/html"),
    Route("GET",    "/devices",                     page("devices"),              "text/html"),
    Route("GET",    "/alerts",                      page("alerts"),               "text/html"),
    Route("POST",   "/alerts",                      silence_form.silence,         "text/html",
          "operator", "adds a silence"),
    Route("GET",    "/about",                       page("about"),                "text/html"),
    Route("GET",    "/fit",                         fit_page.fit,                 "text/html"),
    Route("POST",   "/fit",                         fit_page.fit_config,          "text/html"),
    Route("GET",    "/incidents",                   incident_page.incidents,      "text/html"),
    Route("GET",    "/incidents/{incident_id}",     incident_page.incident,       "text/html"),
    Route("GET",    "/last-words",                  handlers.last_words,          "text/html"),
    Route("GET",    "/runbooks",                    handlers.runbooks,            "text/html"),
    Route("GET",    "/docs",                        handlers.docs,                "text/html"),
    Route("GET",    "/patterns",                    handlers.patterns,            "text/html"),
    Route("GET",    "/live",                        handlers.live,                "text/event-stream"),
)
# fmt: on

# Groups of the OpenAPI description.
API: Mapping[str, tuple[Route, ...]] = {"memory": MEMORY, "programs": PROGRAMS, "alerts": ALERTS, "health": HEALTH}


def api_routes() -> Iterable[Route]:
    return (route for group in API.values() for route in group)


def install(app: FastAPI, services: PageServices) -> None:
    for tag, routes in API.items():
        for route in routes:
            _add(app, route, services, tags=[tag], dependencies=[Depends(refuse_unknown)])
    for route in PAGES:
        _add(app, route, services, include_in_schema=False)
    app.router.routes.extend(static_files.routes())


def _add(app: FastAPI, route: Route, services: PageServices, **described: Any) -> None:  # noqa: ANN401  FastAPI's own
    """Add a route. FastAPI skips the first parameter of a bound method, the services."""
    app.add_api_route(route.path, MethodType(route.handler, services), methods=[route.method], **described)
