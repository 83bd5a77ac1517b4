"""The application: pages and valid requests to the API by Starlette alone, other requests by FastAPI behind it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch_web import plain_routes
from memwatch_web.asgi import static_files
from memwatch_web.asgi.compression import Compression
from memwatch_web.asgi.paths import API, HEALTHZ, METRICS, OPENAPI, READYZ
from memwatch_web.error_handlers import ErrorAnswer
from memwatch_web.pages.services import PageServices

# Paths that start so may be those of the API.
API_PREFIXES = (API.rstrip("/"), HEALTHZ, METRICS, OPENAPI, READYZ)


def create_app(services: PageServices, api: ASGIApp) -> Starlette:
    """Create the application of one monitor. Requests without a route go to `api`, which also refuses them."""
    handlers = ErrorAnswer(services.pages, services.monitor.simulated).handlers
    app = Starlette(middleware=[Middleware(Compression)], exception_handlers=handlers)
    pages = [*plain_routes.serve_pages(services), *static_files.routes()]
    routes = [*plain_routes.serve_api(services, api), *pages]
    app.router = Router(routes, redirect_slashes=False, default=UnknownPaths(pages, api))
    return app


class UnknownPaths:
    """ASGI app for requests without a route: refuses paths that no page has, such as /favicon.ico of old browsers.

    Other methods of a page, its path with a slash at the end, and paths of the API go to `api`.
    """

    def __init__(self, pages: Sequence[Route], api: ASGIApp) -> None:
        self._patterns = [page.path_regex for page in pages]
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith(API_PREFIXES) and not self._has(path) and not self._has(path.rstrip("/")):
            raise HTTPException(404)
        await self._api(scope, receive, send)

    def _has(self, path: str) -> bool:
        return any(pattern.match(path) for pattern in self._patterns)
