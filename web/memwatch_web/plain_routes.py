"""Routes without FastAPI: pages, and valid requests of programs. Importing this module imports no FastAPI."""

from __future__ import annotations

from inspect import signature

from starlette import routing
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memwatch.monitor.render import json as as_json
from memwatch_web.api import (
    alerts,
    history,
    incidents,
    ingest,
    leases,
    machine_views,
    machines,
    owners,
    release,
    snapshot,
    views,
)
from memwatch_web.api.parameters import Parameters
from memwatch_web.api.route import Route
from memwatch_web.asgi.paths import FIT_PAGE, LEASES, LIVE, MARKS, REPORTS
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
NO_INCIDENT = {404: "No such incident."}
NO_LAST_WORDS = {404: "No last words."}
NO_PSS = {
    403: "Permission denied; `detail` describes how to allow it.",
    404: "The process is not listed or has ended, or the kernel does not provide PSS.",
    429: "Rate limit: one read per second.",
}
NO_ROOM = {409: "It does not fit, or a limit is reached; `detail` has the available memory and the leases."}
NO_LEASE = {404: "No such lease."}
NO_MACHINE = {404: "No such neighbour."}
NO_TEST = {409: "No receiver is configured.", 429: "Rate limit: one test notification per 5 s."}
NO_SILENCE = {404: "No such silence."}
TOO_MANY = {409: "The limit of silences is reached."}

# Scope key: the arguments of a handler of the API.
ARGUMENTS = "memwatch.arguments"

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
    Route("POST",   "/api/v1/release",              release.release,              "Release",
          "operator", "collectors close the GPU drivers for a while"),
)
PROGRAMS = (
    Route("POST",   MARKS,                          ingest.marks,                 "MarkReceipt",
          "program", "adds an event"),
    Route("POST",   REPORTS,                        ingest.reports,               "ReportReceipt",
          "program", "replaces the reports of a process"),
    Route("POST",   LEASES,                         leases.lease,                 "Lease",
          "program", "reserves memory for a process", NO_ROOM),
    Route("DELETE", LEASES + "/{lease_id}",         leases.end,                   "Lease[]",
          "program", "ends a lease", NO_LEASE),
    Route("GET",    LEASES,                         views.leases,                "Lease[]"),
)
ALERTS = (
    Route("GET",    "/api/v1/alerts",               views.alerts,                "Alert[]"),
    Route("GET",    "/api/v1/receivers",            views.receivers,             "Receiver[]"),
    Route("GET",    "/api/v1/silences",             views.silences,              "Silence[]"),
    Route("POST",   "/api/v1/alerts/test",          alerts.test,                  "AlertTest",
          "operator", "sends a test message to every receiver", NO_TEST),
    Route("POST",   "/api/v1/silences",             alerts.silence,               "Silence[]",
          "operator", "adds a silence", TOO_MANY),
    Route("DELETE", "/api/v1/silences/{silence_id}", alerts.end,                  "Silence[]",
          "operator", "ends a silence", NO_SILENCE),
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
          "operator", "adds or ends a silence"),
    Route("GET",    "/about",                       page("about"),                "text/html"),
    Route("GET",    FIT_PAGE,                       fit_page.fit,                 "text/html"),
    Route("POST",   FIT_PAGE,                       fit_page.fit_config,          "text/html"),
    Route("GET",    "/incidents",                   incident_page.incidents,      "text/html"),
    Route("GET",    "/incidents/{incident_id}",     incident_page.incident,       "text/html"),
    Route("GET",    "/last-words",                  handlers.last_words,          "text/html"),
    Route("GET",    "/runbooks",                    handlers.runbooks,            "text/html"),
    Route("GET",    "/docs",                        handlers.docs,                "text/html"),
    Route("GET",    LIVE,                           handlers.live,                "text/event-stream"),
)
# fmt: on


class ExactRoute(routing.Route):
    """A route that leaves other methods at its path to the application behind it."""

    def matches(self, scope: Scope) -> tuple[routing.Match, Scope]:
        match, found = super().matches(scope)
        return (match, found) if match is routing.Match.FULL else (routing.Match.NONE, {})


class ApiRoute(ExactRoute):
    """A route of the API. Requests whose parameters are not admitted go to the application behind it."""

    def __init__(self, route: Route, services: PageServices, api: ASGIApp) -> None:
        parameters = self._parameters = Parameters(route.handler)
        names = [parameters.request_name] if parameters.request_name else []

        async def answer(request: Request) -> Response:
            arguments = {**request.scope[ARGUMENTS], **dict.fromkeys(names, request)}
            if parameters.body_name is not None:
                body = await request.body()
                admitted = parameters.admit_body(request.scope, body)
                if admitted is None:
                    return Forwarded(api, body)
                arguments |= admitted
            return await route.handler(services, **arguments)

        super().__init__(route.path, answer, methods=[route.method])

    def matches(self, scope: Scope) -> tuple[routing.Match, Scope]:
        match, found = super().matches(scope)
        if match is not routing.Match.FULL:
            return match, found
        arguments = self._parameters.admit(scope, found["path_params"])
        return (routing.Match.NONE, {}) if arguments is None else (match, {**found, ARGUMENTS: arguments})


class Forwarded(Response):
    """A request whose body was read, for another application."""

    def __init__(self, app: ASGIApp, body: bytes) -> None:
        super().__init__()
        self._app = app
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_again() -> Message:
            message, self._request = self._request, None
            return message or await receive()

        await self._app(scope, receive_again, send)


def serve_api(services: PageServices, api: ASGIApp) -> list[routing.Route]:
    return [ApiRoute(route, services, api) for route in (*MEMORY, *PROGRAMS, *ALERTS)]


def serve_pages(services: PageServices, kind: type[routing.Route] = ExactRoute) -> list[routing.Route]:
    return [_serve(kind, route, services) for route in PAGES]


def _serve(kind: type[routing.Route], route: Route, services: PageServices) -> routing.Route:
    count = len(signature(route.handler).parameters)

    async def answer(request: Request) -> Response:
        return await route.handler(*(services, request)[:count])

    return kind(route.path, answer, methods=[route.method])
