"""The application: pages and views of the API by Starlette alone, the rest of the API by FastAPI behind it."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Router
from starlette.types import ASGIApp

from memwatch_web import plain_routes
from memwatch_web.asgi import static_files
from memwatch_web.asgi.compression import Compression
from memwatch_web.error_handlers import ErrorAnswer
from memwatch_web.pages.services import PageServices


def create_app(services: PageServices, api: ASGIApp) -> Starlette:
    """Create the application of one monitor. Requests without a route go to `api`, which also refuses them."""
    handlers = ErrorAnswer(services.pages, services.monitor.simulated).handlers
    app = Starlette(middleware=[Middleware(Compression)], exception_handlers=handlers)
    routes = [*plain_routes.serve_views(services), *plain_routes.serve_pages(services), *static_files.routes()]
    app.router = Router(routes, redirect_slashes=False, default=api)
    return app
