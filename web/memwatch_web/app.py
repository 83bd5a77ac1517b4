"""The FastAPI application: API and pages. Importing this module imports FastAPI (26 MiB)."""

from __future__ import annotations

import inspect
from typing import Any

from fastapi import FastAPI

from memwatch.build_info import REVISION, __version__
from memwatch_web import error_handlers as refusals
from memwatch_web import routes
from memwatch_web.asgi.compression import Compression
from memwatch_web.pages.services import PageServices


def create_app(services: PageServices) -> FastAPI:
    """Create the application of one monitor."""
    app = Application(
        title="memwatchd",
        version=__version__,
        description="Memory of this machine: pools that add up, and shares inside them. Sizes are bytes.",
        docs_url=None,
        redoc_url=None,
        **_no_telemetry(),
    )
    app.add_middleware(Compression)
    refusals.install(app, services.pages, services.monitor.simulated)
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
