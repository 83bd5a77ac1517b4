"""Routes that need no validation: API without parameters, and pages. Importing this module imports no FastAPI."""

from __future__ import annotations

from inspect import signature

from starlette import routing
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from memwatch.render import json as as_json
from memwatch_web.api import machine_views, views
from memwatch_web.api.route import Route
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

SIMULATED = {404: "Not available for demo data."}

# fmt: off
MEMORY = (
    #      method   path                            handler                              answer
    Route("GET",    "/api/v1/snapshot",             views.part(as_json.snapshot_json),    "Snapshot"),
    Route("GET",    "/api/v1/pools",                views.part(as_json.pools_json),       "Pool[]"),
    Route("GET",    "/api/v1/shares",               views.part(as_json.shares_json),      "Share[]"),
    Route("GET",    "/api/v1/devices",              views.part(as_json.devices_json),     "Device[]"),
    Route("GET",    "/api/v1/processes",            views.part(as_json.processes_json),   "Process[]"),
    Route("GET",    "/api/v1/engines",              views.part(as_json.engines_json),     "Engine[]"),
    Route("GET",    "/api/v1/pressure",             views.part(as_json.pressure_json),    "Pressure[]"),
    Route("GET",    "/api/v1/collectors",           views.part(as_json.collectors_json),  "Collector[]"),
    Route("GET",    "/api/v1/machines",             machine_views.machines,           "ListedMachine[]"),
    Route("GET",    "/api/v1/backends",             views.backends,               "Backends",
          refusals=SIMULATED),
    Route("GET",    "/api/v1/doctor",               views.doctor,                 "Examination",
          refusals=SIMULATED),
)
PROGRAMS = (
    Route("GET",    "/api/v1/leases",               views.leases,                "Lease[]"),
)
ALERTS = (
    Route("GET",    "/api/v1/alerts",               views.alerts,                "Alert[]"),
    Route("GET",    "/api/v1/receivers",            views.receivers,             "Receiver[]"),
    Route("GET",    "/api/v1/silences",             views.silences,              "Silence[]"),
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


class ExactRoute(routing.Route):
    """A route that leaves other methods at its path to the application behind it."""

    def matches(self, scope: Scope) -> tuple[routing.Match, Scope]:
        match, found = super().matches(scope)
        return (match, found) if match is routing.Match.FULL else (routing.Match.NONE, {})


class ViewRoute(ExactRoute):
    """A route of the API. Requests with parameters, which are refused, go to the application behind it."""

    def matches(self, scope: Scope) -> tuple[routing.Match, Scope]:
        return (routing.Match.NONE, {}) if scope["query_string"] else super().matches(scope)


class CompactStreamRoute(ExactRoute):
    """The stream as neighbours request it. Other parameters go to the application behind it."""

    def matches(self, scope: Scope) -> tuple[routing.Match, Scope]:
        return super().matches(scope) if scope["query_string"] == b"form=compact" else (routing.Match.NONE, {})


def serve_views(services: PageServices) -> list[routing.Route]:
    compact = Route("GET", "/api/v1/stream", views.compact_stream)
    found = [_serve(ViewRoute, route, services) for route in (*MEMORY, *PROGRAMS, *ALERTS)]
    return [*found, _serve(CompactStreamRoute, compact, services)]


def serve_pages(services: PageServices, kind: type[routing.Route] = ExactRoute) -> list[routing.Route]:
    return [_serve(kind, route, services) for route in PAGES]


def _serve(kind: type[routing.Route], route: Route, services: PageServices) -> routing.Route:
    count = len(signature(route.handler).parameters)

    async def answer(request: Request) -> Response:
        return await route.handler(*(services, request)[:count])

    return kind(route.path, answer, methods=[route.method])
