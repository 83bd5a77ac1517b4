"""Error responses: a detail as problem+json or as a page, never a traceback."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match

from memwatch.core.runtime.failure_log import FailureLog
from memwatch_web.asgi.problems import problem_response
from memwatch_web.asgi.routes import LIVE, STATIC

if TYPE_CHECKING:
    from memwatch_web.pages.renderer import Pages

log = logging.getLogger(__name__)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

# FastAPI's detail for a body that its JSON parser cannot decode; the only 400 that it returns by itself.
UNREADABLE_BODY = "There was an error parsing the body"

# No page is nested deeper. Each link of an error page has this number of "../" at most.
MAX_STEPS_UP = 20


class ErrorAnswer:
    """Handlers of exceptions, so that every error has a detail and none a traceback. The API has no `pages`."""

    def __init__(self, simulated: bool, pages: Pages | None = None) -> None:
        self._pages = pages
        self._simulated = simulated
        self._failure_log = FailureLog()

    @property
    def handlers(self) -> dict[Any, Any]:
        """Return the handlers by class of exception, as Starlette takes them."""
        return {HTTPException: self._rejected, Exception: self._broken}

    def __call__(
        self, request: Request, status: int, sentence: str, headers: dict[str, str] | None = None
    ) -> Response:
        if self._pages is None or not is_page(request.scope["path"]):
            return problem_response(status, sentence, headers, self._simulated)
        headers = {"vary": "accept", **(headers or {})}
        if not wants_page(request):
            return problem_response(status, sentence, headers, self._simulated)
        page = self._pages.refused(choose_heading(request, status), sentence, way_up(request), self._simulated)
        return HTMLResponse(page, status, headers)

    async def _rejected(self, request: Request, error: HTTPException) -> Response:
        detail, headers = str(error.detail), dict(error.headers or {})
        if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
            detail = "No such path. The available paths are listed at /docs."
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(methods_at(request))
            detail = f"{request.method} is not allowed here: use {headers['Allow'].partition(',')[0]}."
        if detail == UNREADABLE_BODY:
            return self(request, 422, "The body is not valid JSON in UTF-8.", headers)
        return self(request, error.status_code, detail, headers)

    async def _broken(self, request: Request, error: Exception) -> Response:
        """Return problem+json, never a page: the page renderer itself may have failed."""
        text = f"{request.scope['path']!r} failed: {type(error).__name__}: {error}"
        if self._failure_log.admits(text):
            log.error("%s", text)
        return problem_response(
            500, "Internal error: the log of memwatchd has the cause. Sampling continues.", None, self._simulated
        )


def is_page(path: str) -> bool:
    """Check that a path may have been meant as a page. Scripts and styles ask for the others."""
    return path != LIVE and not f"{path}/".startswith(STATIC)


def wants_page(request: Request) -> bool:
    """Check that a browser sent the request. Programs that accept anything get JSON."""
    return "text/html" in request.headers.get("accept", "")


def choose_heading(request: Request, status: int) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return "Page not found"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "Not available"
    return "Invalid request" if request.method == "GET" else "Request failed"


def way_up(request: Request) -> str:
    """Return the relative path from the requested path to the pages. It also works behind a proxy with a prefix."""
    path: bytes = request.scope["raw_path"]
    return "../" * min(path.count(b"/") - 1, MAX_STEPS_UP)


def methods_at(request: Request) -> list[str]:
    """Return the allowed methods of a path. Starlette has those of the first of several routes only.

    HEAD is allowed with GET: the access middleware converts it.
    """
    found = []
    for method in METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            found += ["GET", "HEAD"] if method == "GET" else [method]
    return found
