"""The API: its table of routes, and the FastAPI application. Importing this module imports FastAPI."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from memwatch.build_info import REVISION, __version__
from memwatch.core.guardian_report import PATH as GUARDIAN
from memwatch.core.wire import to_bytes
from memwatch.reporting.render import json as as_json
from memwatch.reporting.render.json import JSON_TYPE
from memwatch_web.api import alerts, guardian, history, machines, owners, programs, snapshot
from memwatch_web.api.dependencies import ApiServices, find_example, refuse_unknown
from memwatch_web.api.services import Services
from memwatch_web.asgi.latest_snapshot import health_response, readiness_response
from memwatch_web.asgi.problems import ErrorAnswer, describe_error
from memwatch_web.asgi.routes import HEALTHZ, LEASES, MARKS, METRICS, OPENAPI, READYZ, REPORTS, Route
from memwatch_web.asgi.static_files import Compression
from memwatch_web.metrics.endpoint import MetricsEndpoint

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


# Written by `make reference`.
DESCRIPTION_FILE = Path(__file__).parent / "api/openapi.json"

# LazyApp answers requests of these three. The routes describe them, and refuse other methods.


async def metrics(request: Request) -> Response:
    """Return metrics in the Prometheus text format, or in OpenMetrics if the Accept header requests it."""
    endpoint: MetricsEndpoint = request.app.state.metrics
    return endpoint.response(request.headers.raw).for_fastapi()


async def healthz(services: ApiServices) -> Response:
    """Return 200 while sampling works: the last tick is at most three intervals old (at least 1 s)."""
    return health_response(services.monitor).for_fastapi()


async def readyz(services: ApiServices) -> Response:
    """Return 200 once the first snapshot exists."""
    return readiness_response(services.monitor).for_fastapi()


async def describe_api() -> Response:
    """Return the OpenAPI description that `make reference` wrote, with the version of this program.

    To generate it takes 3 MiB of memory that stays in use.
    """
    info = {"title": "memwatchd", "version": __version__, "description": DESCRIPTION, "x-revision": REVISION}
    rest = DESCRIPTION_FILE.read_bytes().removeprefix(b"{")
    return Response(b'{"info":%b,%b' % (to_bytes(info), rest), media_type=JSON_TYPE)


# fmt: off
MEMORY = (
    #      method   path                            handler                              answer
    Route("GET",    "/api/v1/snapshot",             snapshot.part(as_json.snapshot_json),    "Snapshot"),
    Route("GET",    "/api/v1/pools",                snapshot.part(as_json.pools_json),       "Pool[]"),
    Route("GET",    "/api/v1/shares",               snapshot.part(as_json.shares_json),      "Share[]"),
    Route("GET",    "/api/v1/devices",              snapshot.part(as_json.devices_json),     "Device[]"),
    Route("GET",    "/api/v1/processes",            snapshot.part(as_json.processes_json),   "Process[]"),
    Route("GET",    "/api/v1/engines",              snapshot.part(as_json.engines_json),     "Engine[]"),
    Route("GET",    "/api/v1/pressure",             snapshot.part(as_json.pressure_json),    "Pressure[]"),
    Route("GET",    "/api/v1/collectors",           snapshot.part(as_json.collectors_json),  "Collector[]"),
    Route("GET",    "/api/v1/machines",             machines.machines,            "ListedMachine[]"),
    Route("GET",    "/api/v1/backends",             snapshot.backends,            "Backends",
          refusals=SIMULATED),
    Route("GET",    "/api/v1/doctor",               snapshot.doctor,              "Examination",
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
    Route("GET",    "/api/v1/incidents",            history.incidents,            "Incident[]"),
    Route("GET",    "/api/v1/incidents/{incident_id}", history.incident,          "Incident",
          refusals=NO_INCIDENT),
    Route("GET",    "/api/v1/stream",               snapshot.stream,              "text/event-stream"),
    Route("GET",    "/api/v1/machines/{name}",      machines.machine,             "FollowedMachine",
          refusals=NO_MACHINE),
    Route("POST",   "/api/v1/release",              snapshot.release,             "Release",
          "operator", "collectors close the GPU drivers for a while"),
    Route("GET",    "/api/v1/fit",                  snapshot.fit,                 "Fit"),
    Route("GET",    "/api/v1/room",                 snapshot.room,                "Room"),
    Route("GET",    METRICS,                        metrics,                      "text/plain"),
)
PROGRAMS = (
    Route("POST",   MARKS,                          programs.marks,               "MarkReceipt",
          "program", "adds an event"),
    Route("POST",   REPORTS,                        programs.reports,             "ReportReceipt",
          "program", "replaces the reports of a process"),
    Route("POST",   LEASES,                         programs.lease,               "Lease",
          "program", "reserves memory for a process", NO_ROOM),
    Route("DELETE", LEASES + "/{lease_id}",         programs.end,                 "Lease[]",
          "program", "ends a lease", NO_LEASE),
    Route("POST",   GUARDIAN,                       guardian.decisions,           "GuardianReceipt",
          "operator", "adds an event of memwatch-guardian", SIMULATED),
    Route("GET",    LEASES,                         programs.leases,             "Lease[]"),
)
ALERTS = (
    Route("GET",    "/api/v1/alerts",               alerts.alerts,               "Alert[]"),
    Route("GET",    "/api/v1/receivers",            alerts.receivers,            "Receiver[]"),
    Route("GET",    "/api/v1/silences",             alerts.silences,             "Silence[]"),
    Route("POST",   "/api/v1/alerts/test",          alerts.test,                  "AlertTest",
          "operator", "sends a test message to every receiver", NO_TEST),
    Route("POST",   "/api/v1/silences",             alerts.silence,               "Silence[]",
          "operator", "adds a silence", TOO_MANY),
    Route("DELETE", "/api/v1/silences/{silence_id}", alerts.end,                  "Silence[]",
          "operator", "ends a silence", NO_SILENCE),
)
HEALTH = (
    Route("GET",    HEALTHZ,                        healthz,                      "Health", "anyone"),
    Route("GET",    READYZ,                         readyz,                       "Health", "anyone"),
)
# fmt: on

DESCRIPTION = """Memory of this machine: pools that add up, and shares inside them. Sizes are bytes, ratios are
0 to 1, and times are Unix seconds. `null` means that a figure is absent; `absent` of the same object has the
reason. Begin with `/api/v1/pools`, `/api/v1/devices` for what a GPU can allocate, and `/api/v1/pressure` for the
level and the time left."""
# Groups of the OpenAPI description.
API: Mapping[str, tuple[Route, ...]] = {"memory": MEMORY, "programs": PROGRAMS, "alerts": ALERTS, "health": HEALTH}


def api_routes() -> Iterable[Route]:
    return (route for group in API.values() for route in group)


def create_api(services: Services, metrics_endpoint: MetricsEndpoint) -> FastAPI:
    """Create the API of one monitor."""
    answer_error = ErrorAnswer(services.monitor.simulated)
    services.inquiries()  # loads their modules: all of the API is there before memory is short

    async def invalid(request: Request, error: RequestValidationError) -> ASGIApp:
        wanted = request.scope["route"].dependant
        sentences = [describe_error(one, find_example(wanted, one["loc"])) for one in error.errors()]
        return answer_error(request, 422, "; ".join(sentences))

    app = FastAPI(
        openapi_url=None,  # `describe_api` has it
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(refuse_unknown)],
        middleware=[Middleware(Compression)],
        exception_handlers=answer_error.handlers | {RequestValidationError: invalid},
        **_no_telemetry(),
    )
    app.state.services, app.state.metrics = services, metrics_endpoint
    app.add_api_route(OPENAPI, describe_api, include_in_schema=False)
    for tag, routes in API.items():
        for route in routes:
            app.add_api_route(route.path, route.handler, methods=[route.method], tags=[tag])
    return app


def _no_telemetry() -> dict[str, Any]:
    """Disable the OpenTelemetry traces that FastAPI from 0.145 on exports if an environment variable is set."""
    if "telemetry" in inspect.signature(FastAPI).parameters:
        return {"telemetry": {"auto_configure": False, "tracing": False}}
    return {}
