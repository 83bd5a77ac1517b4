"""Errors a client can act on: RFC 9457 problem+json with a sentence that says what to do."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from memwatch_web.as_json import answer_bytes

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class Problem(HTTPException):
    """A refusal with its sentence; `headers` such as Retry-After go with it."""


def problem_response(
    status: int, detail: str, headers: dict[str, str] | None = None, simulated: bool = False
) -> Response:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    return Response(answer_bytes(body, simulated), status_code=status, media_type=MEDIA_TYPE, headers=headers)


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
            if "GET" in headers["Allow"]:  # then the gate lets HEAD through as well
                headers["Allow"] = "GET, HEAD"
            detail = f"{request.method} is not possible here. Try {headers['Allow'].partition(',')[0]}."
        if detail == UNREADABLE_BODY:
            return problem_response(422, "The body is not JSON in UTF-8.", headers, simulated)
        return problem_response(error.status_code, detail, headers, simulated)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return problem_response(422, "; ".join(sentence_of(one) for one in error.errors()), None, simulated)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.error("%r failed: %s: %s", request.scope["path"], type(error).__name__, error)
        return problem_response(
            500, "memwatchd could not answer this. Its log says why; sampling goes on.", None, simulated
        )


def sentence_of(error: Any) -> str:  # noqa: ANN401  pydantic's error dictionary
    where, *names = error["loc"]
    name = ".".join(str(part) for part in names) or str(where)
    given = repr(error.get("input"))
    shown = given if len(given) <= 80 else given[:77] + "…"
    return f"{name} is {shown}: {error['msg'][:1].lower()}{error['msg'][1:]}"
