"""The FastAPI application: the API. Importing this module imports FastAPI (15 MiB)."""

from __future__ import annotations

import inspect
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from memwatch.build_info import REVISION, __version__
from memwatch_web import routes
from memwatch_web.asgi.problems import describe_error
from memwatch_web.asgi.strict_query import find_example
from memwatch_web.error_handlers import ErrorAnswer
from memwatch_web.pages.services import PageServices


def create_api(services: PageServices) -> FastAPI:
    """Create the API of one monitor. It also refuses requests for pages that do not exist."""
    app = Application(
        title="memwatchd",
        version=__version__,
        description="Memory of this machine: pools that add up, and shares inside them. Sizes are bytes.",
        docs_url=None,
        redoc_url=None,
        **_no_telemetry(),
    )
    answer_error = ErrorAnswer(services.pages, services.monitor.simulated)
    for kind, handler in answer_error.handlers.items():
        app.add_exception_handler(kind, handler)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wanted = request.scope["route"].dependant
        sentences = [describe_error(one, find_example(wanted, one["loc"])) for one in error.errors()]
        return answer_error(request, 422, "; ".join(sentences))

    routes.install(app, services)
    return app


class Application(FastAPI):
    """FastAPI with a lazy OpenAPI description: its models take 2 MiB (November 2026)."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            from memwatch_web.api.openapi import with_answers

            described = with_answers(super().openapi(), routes.api_routes())
            described["info"]["x-revision"] = REVISION
            self.openapi_schema = described
        return self.openapi_schema


def _no_telemetry() -> dict[str, Any]:
    """Disable the OpenTelemetry traces that FastAPI from 0.145 on exports if an environment variable is set."""
    if "telemetry" in inspect.signature(FastAPI).parameters:
        return {"telemetry": {"auto_configure": False, "tracing": False}}
    return {}
