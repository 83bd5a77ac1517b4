"""What the application says when it refuses, or fails: a problem with its sentence, never a traceback."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from memwatch_web.parameters import example_of
from memwatch_web.problems import problem_response, sentence_of

log = logging.getLogger(__name__)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

# FastAPI's words for a body that its JSON parser cannot decode; the only 400 that it answers by itself.
UNREADABLE_BODY = "There was an error parsing the body"


def install(app: FastAPI, simulated: bool = False) -> None:
    """Every error of this application leaves as a problem, and none with a traceback."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        detail, headers = str(error.detail), dict(error.headers or {})
        if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
            detail = "There is nothing at this path. The paths that exist are listed at /docs."
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(methods_at(request))
            detail = f"{request.method} is not possible here. Try {headers['Allow'].partition(',')[0]}."
        if detail == UNREADABLE_BODY:
            return problem_response(422, "The body is not JSON in UTF-8.", headers, simulated)
        return problem_response(error.status_code, detail, headers, simulated)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wanted = request.scope["route"].dependant
        sentences = [sentence_of(one, example_of(wanted, one["loc"])) for one in error.errors()]
        return problem_response(422, "; ".join(sentences), None, simulated)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.error("%r failed: %s: %s", request.scope["path"], type(error).__name__, error)
        return problem_response(
            500, "memwatchd could not answer this. Its log says why; sampling goes on.", None, simulated
        )


def methods_at(request: Request) -> list[str]:
    """What is possible at this path. Starlette names the methods of the first of several routes only. Where GET is
    possible the gate lets HEAD through as well."""
    found = []
    for method in METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            found += ["GET", "HEAD"] if method == "GET" else [method]
    return found
