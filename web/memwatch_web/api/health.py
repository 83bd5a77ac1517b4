"""The two answers of health, for their description: the lazy app answers them before this application is made."""

from __future__ import annotations

from starlette.responses import Response

from memwatch_web.api.services import Services
from memwatch_web.asgi.health import health_response, readiness_response


async def healthz(services: Services) -> Response:
    """200 while the loop ticks: the last tick is at most three intervals, or a second, old."""
    return health_response(services.monitor)


async def readyz(services: Services) -> Response:
    """200 once the first snapshot exists."""
    return readiness_response(services.monitor)
