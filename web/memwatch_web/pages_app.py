"""The pages: their table of routes, and the Starlette application. Importing this module imports no FastAPI."""

from __future__ import annotations

from inspect import signature

from starlette import routing
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from memwatch_web.asgi import static_files
from memwatch_web.asgi.problems import ErrorAnswer
from memwatch_web.asgi.routes import FIT_PAGE, LIVE, Route
from memwatch_web.asgi.static_files import Compression
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

# fmt: off
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


def create_pages_app(services: PageServices) -> Starlette:
    """Create the application of the pages of one monitor."""
    return Starlette(
        routes=[*(_serve(route, services) for route in PAGES), *static_files.routes()],
        middleware=[Middleware(Compression)],
        exception_handlers=ErrorAnswer(services.monitor.simulated, services.pages.refused).handlers,
    )


def _serve(route: Route, services: PageServices) -> routing.Route:
    count = len(signature(route.handler).parameters)

    async def answer(request: Request) -> Response:
        return await route.handler(*(services, request)[:count])

    return routing.Route(route.path, answer, methods=[route.method])
