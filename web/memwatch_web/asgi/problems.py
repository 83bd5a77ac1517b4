"""Errors as RFC 9457 problem+json with an actionable detail."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from msgspec import Struct
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response

from memwatch.core.printable import printable
from memwatch.monitor.render.json import answer_bytes

MEDIA_TYPE = "application/problem+json"
# Python values as the client wrote them in JSON.
IN_JSON = {None: "null", True: "true", False: "false"}


class ProblemDetails(Struct, frozen=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


class ProblemError(HTTPException):
    """An error response with its detail and headers such as Retry-After."""


def refuse_repeated(query: QueryParams, lists: Collection[str] = ()) -> None:
    """Raise ProblemError for a parameter that is given twice, except those of `lists`."""
    for name in query:
        if name not in lists and (count := len(query.getlist(name))) > 1:
            raise ProblemError(422, f"{name[:80]} is given {count} times: give it once.")


def problem_response(
    status: int, detail: str, headers: dict[str, str] | None = None, simulated: bool = False
) -> Response:
    """Build the response. `detail` may quote the request, so it is made printable."""
    body = ProblemDetails("about:blank", HTTPStatus(status).phrase, status, printable(detail))
    return Response(answer_bytes(body, simulated), status_code=status, media_type=MEDIA_TYPE, headers=headers)


def describe_error(error: Any, example: str | None = None) -> str:  # noqa: ANN401  pydantic's error dictionary
    """Describe an invalid parameter or body field. `example`: a value to send if it is missing."""
    where, *names = error["loc"]
    name = ".".join(str(part) for part in names) or str(where)
    if error["type"] == "missing":
        remedy = "send JSON" if where == "body" else "give it"
        return f"{name} is missing: {remedy}{f', for example {example}' if example else ''}"
    value = error.get("input")
    words = IN_JSON[value] if value is None or isinstance(value, bool) else repr(value)
    shown = words if len(words) <= 80 else words[:77] + "…"
    return f"{name} is {shown}: {error['msg'][:1].lower()}{error['msg'][1:]}"
