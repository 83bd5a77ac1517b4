"""Handlers of the health checks, for the OpenAPI description. LazyApp serves the requests itself."""

from __future__ import annotations

from starlette.responses import Response

from memwatch_web.api.services import Services
from memwatch_web.asgi.health import health_response, readiness_response


async def healthz(services: Services) -> Response:
    """Return 200 while sampling works: the last tick is at most three intervals old (at least 1 s)."""
    return health_response(services.monitor)


async def readyz(services: Services) -> Response:
    """Return 200 once the first snapshot exists."""
    return readiness_response(services.monitor)
