"""Tables of all routes of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import Depends, FastAPI
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response

from memwatch_web import plain_routes
from memwatch_web.api import fit, health
from memwatch_web.api.fastapi_parameters import bind
from memwatch_web.api.route import Route
from memwatch_web.asgi.paths import HEALTHZ, METRICS, READYZ
from memwatch_web.asgi.strict_query import refuse_unknown
from memwatch_web.pages.services import PageServices


async def metrics(services: PageServices, request: Request) -> Response:
    """Return metrics in the Prometheus text format, or in OpenMetrics if the Accept header requests it."""
    return services.scrapes.response(request.headers.raw)


# fmt: off
MEMORY = (
    *plain_routes.MEMORY,
    #      method   path                            handler                       answer
    Route("GET",    "/api/v1/fit",                  fit.fit,                      "Fit"),
    Route("GET",    METRICS,                        metrics,                      "text/plain"),
)
HEALTH = (
    Route("GET",    HEALTHZ,                        health.healthz,               "Health", "anyone"),
    Route("GET",    READYZ,                         health.readyz,                "Health", "anyone"),
)
# fmt: on

# Groups of the OpenAPI description.
API: Mapping[str, tuple[Route, ...]] = {
    "memory": MEMORY,
    "programs": plain_routes.PROGRAMS,
    "alerts": plain_routes.ALERTS,
    "health": HEALTH,
}


def api_routes() -> Iterable[Route]:
    return (route for group in API.values() for route in group)


def install(app: FastAPI, services: PageServices) -> None:
    """Add the routes of the API, and those of pages: errors name the methods of a path."""
    for tag, routes in API.items():
        for route in routes:
            handler, refuse = bind(route, services), [Depends(refuse_unknown)]
            app.add_api_route(route.path, handler, methods=[route.method], tags=[tag], dependencies=refuse)
    app.router.routes.extend(plain_routes.serve_pages(services, routing.Route))
