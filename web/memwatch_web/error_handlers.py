"""What the application says when it refuses, or fails: a sentence, as a problem or as a page, never a traceback."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match

from memwatch_web.asgi.problems import problem_response, sentence_of
from memwatch_web.asgi.strict_query import example_of
from memwatch_web.pages.renderer import Pages

log = logging.getLogger(__name__)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

# FastAPI's words for a body that its JSON parser cannot decode; the only 400 that it answers by itself.
UNREADABLE_BODY = "There was an error parsing the body"

# What programs ask, with a browser at most behind them.
NO_PAGES = frozenset({"/api", "/healthz", "/live", "/metrics", "/openapi.json", "/readyz", "/static"})
NO_PAGES_UNDER = ("/api/", "/static/")
# Nobody's page lies so deep, and each link of a page that is none takes so many.
MOST_STEPS_UP = 20


def install(app: FastAPI, pages: Pages, simulated: bool = False) -> None:
    """Every error of this application leaves with a sentence, and none with a traceback."""

    def answer(request: Request, status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
        if not is_page(request.scope["path"]):
            return problem_response(status, sentence, headers, simulated)
        headers = {"vary": "accept", **(headers or {})}
        if not wants_page(request):
            return problem_response(status, sentence, headers, simulated)
        page = pages.refused(heading_of(request, status), sentence, way_up(request), simulated)
        return HTMLResponse(page, status, headers)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        detail, headers = str(error.detail), dict(error.headers or {})
        if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
            detail = "There is nothing at this path. The paths that exist are listed at /docs."
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(methods_at(request))
            detail = f"{request.method} is not possible here. Try {headers['Allow'].partition(',')[0]}."
        if detail == UNREADABLE_BODY:
            return answer(request, 422, "The body is not JSON in UTF-8.", headers)
        return answer(request, error.status_code, detail, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wanted = request.scope["route"].dependant
        sentences = [sentence_of(one, example_of(wanted, one["loc"])) for one in error.errors()]
        return answer(request, 422, "; ".join(sentences))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        """Never a page: what fails may be what makes them."""
        log.error("%r failed: %s: %s", request.scope["path"], type(error).__name__, error)
        return problem_response(
            500, "memwatchd could not answer this. Its log says why; sampling goes on.", None, simulated
        )


def is_page(path: str) -> bool:
    """Whether somebody who looks for a page may have asked for this."""
    return path not in NO_PAGES and not path.startswith(NO_PAGES_UNDER)


def wants_page(request: Request) -> bool:
    """Whether a browser asks. Programs that take anything are better off with JSON."""
    return "text/html" in request.headers.get("accept", "")


def heading_of(request: Request, status: int) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return "There is no such page"
    return "This cannot be shown" if request.method == "GET" else "This was not done"


def way_up(request: Request) -> str:
    """From the path that was asked for to where the pages are, also behind a proxy that serves them elsewhere."""
    path: bytes = request.scope["raw_path"]
    return "../" * min(path.count(b"/") - 1, MOST_STEPS_UP)


def methods_at(request: Request) -> list[str]:
    """What is possible at this path. Starlette names the methods of the first of several routes only. Where GET is
    possible the gate lets HEAD through as well."""
    found = []
    for method in METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            found += ["GET", "HEAD"] if method == "GET" else [method]
    return found
