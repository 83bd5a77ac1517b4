"""Errors a client can act on: RFC 9457 problem+json with a sentence that says what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from memwatch.render.json import answer_bytes

MEDIA_TYPE = "application/problem+json"
# As whoever sent it wrote it.
IN_JSON = {None: "null", True: "true", False: "false"}


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


def sentence_of(error: Any, example: str | None = None) -> str:  # noqa: ANN401  pydantic's error dictionary
    """What is wrong with a parameter, or a field of a body; `example` is what one may send where nothing was."""
    where, *names = error["loc"]
    name = ".".join(str(part) for part in names) or str(where)
    if error["type"] == "missing":
        remedy = "send JSON" if where == "body" else "give it"
        return f"{name} is missing: {remedy}{f', for example {example}' if example else ''}"
    given = error.get("input")
    words = IN_JSON[given] if given is None or isinstance(given, bool) else repr(given)
    shown = words if len(words) <= 80 else words[:77] + "…"
    return f"{name} is {shown}: {error['msg'][:1].lower()}{error['msg'][1:]}"
