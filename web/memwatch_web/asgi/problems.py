"""Complete responses, and errors: RFC 9457 problem+json with an actionable detail, or a page. Never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from memwatch.core.printable import printable
from memwatch.core.runtime.worker import FailureLog
from memwatch.reporting.render.json import answer_bytes
from memwatch_web.asgi.routes import LIVE, PAGE_STYLE, STATIC, is_of_api

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)


class BytesResponse:
    """ASGI response that is complete. `headers` are those of the whole response; names are in lower case.

    Starlette's loads 60 modules (1.4 MiB) that scrapes and health checks do not need.
    """

    def __init__(
        self, body: bytes, media_type: str, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body = body
        self.status_code = status_code
        own = {name.lower(): value for name, value in (headers or {}).items()}
        self.headers: Mapping[str, str] = {**own, "content-length": str(len(body)), "content-type": media_type}

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status_code, "headers": fields})
        await send({"type": "http.response.body", "body": self.body})

    def for_fastapi(self) -> Response:
        """Return the same response as FastAPI takes it from a path operation function."""
        from starlette.responses import Response

        return Response(self.body, self.status_code, dict(self.headers))


MEDIA_TYPE, PAGE_TYPE = "application/problem+json", "text/html; charset=utf-8"
INVALID = "Invalid request"
# Python values as the client wrote them in JSON.
IN_JSON = {None: "null", True: "true", False: "false"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# FastAPI's detail for a body that its JSON parser cannot decode; the only 400 that it returns by itself.
UNREADABLE_BODY = "There was an error parsing the body"
# Of a browser whose request is refused before it reaches the pages: they need a framework, templates and a login.
REFUSAL_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <meta name="robots" content="noindex">
  <title>{heading} · memwatch</title>
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="{style}">
</head>
<body>
<header class="top"><p class="brand">memwatch</p></header>
<main class="page-refused">
<section class="page-head"><h1>{heading}</h1></section>
<section class="card">
  <p class="refused">{sentence}</p>
{more}
</section>
</main>
</body>
</html>
"""
# Headings of refusals that happen before a page is known. The path that is asked for may be tried again.
REFUSED_HEADINGS = {401: "Log in", 403: "Not allowed", 429: "Too many failed logins", 503: "Not available"}
AGAIN = {401: "Log in", 429: "Try again", 503: "Try again"}
# No page is nested deeper. Each link of an error page has this number of "../" at most.
MAX_STEPS_UP = 20


class ProblemDetails(Struct, frozen=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


class ProblemError(Exception):
    """An error response with its detail and headers such as Retry-After."""

    def __init__(self, status_code: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status_code, detail, headers)
        self.status_code = status_code
        self.detail = detail
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.status_code}: {self.detail}"


def refuse_repeated(query: QueryParams, lists: Collection[str] = ()) -> None:
    """Raise ProblemError for a parameter that is given twice, except those of `lists`."""
    for name in query:
        if name not in lists and (count := len(query.getlist(name))) > 1:
            raise ProblemError(422, f"{name[:80]} is given {count} times: give it once.")


def problem_response(
    status: int, detail: str, headers: dict[str, str] | None = None, simulated: bool = False
) -> BytesResponse:
    """Build the response. `detail` may quote the request, so it is made printable."""
    body = ProblemDetails("about:blank", HTTPStatus(status).phrase, status, printable(detail))
    return BytesResponse(answer_bytes(body, simulated), MEDIA_TYPE, status, headers)


def refusal_response(
    scope: Scope,
    status: int,
    detail: str,
    headers: dict[str, str],
    simulated: bool,
    sentence: str,
    logins: Sequence[str],
) -> BytesResponse:
    """Build a refusal by the access middleware: a page for a browser, else problem+json with `detail`.

    `sentence`: what the page has in place of `detail`. `logins`: users and passwords as HTML, for a browser
    that may try again. The page has neither data of the machine nor an address out of the request.
    """
    path = scope["path"]
    if is_of_api(path) or not is_page(path):
        return problem_response(status, detail, headers, simulated)
    headers = {"vary": "accept", **headers}
    if not accepts_pages(scope["headers"]):
        return problem_response(status, detail, headers, simulated)
    from html import escape  # with a table of 2,231 names, which only pages need

    page = REFUSAL_PAGE.format(
        heading=REFUSED_HEADINGS.get(status, INVALID),
        style=(way_up(scope) or "./") + PAGE_STYLE[1:],
        sentence=escape(printable(f"{sentence[:1].upper()}{sentence[1:]}")),
        more="\n".join(list_ways(scope, status, logins)),
    )
    return BytesResponse(page.encode(), PAGE_TYPE, status, headers)


def list_ways(scope: Scope, status: int, logins: Sequence[str]) -> Iterator[str]:
    """Yield what a refused client can do, as HTML. The links are relative to the page."""
    if logins:
        yield "  <p>Your browser asks for a user and a password. They are:</p>\n  <ul>"
        yield from (f"    <li>{one}</li>" for one in logins)
        yield "  </ul>"
    if status in AGAIN:
        yield f'  <p class="try-again"><a class="button" href="">{AGAIN[status]}</a></p>'
    else:
        yield f'  <p class="note">Go back, or open the <a href="{way_up(scope) or "."}">overview</a>.</p>'
    if logins:
        yield (
            '  <p class="note">The command needs no login over the socket file on this machine: root and the '
            "group of memwatchd may use it. Elsewhere it takes the token from <code>MEMWATCH_TOKEN</code>.</p>"
        )


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


class ErrorAnswer:
    """Handlers of exceptions, so that every error has a detail and none a traceback.

    `render`: renders a page from heading, sentence, path to the pages, and `simulated`. The API has none.
    """

    def __init__(self, simulated: bool, render: Callable[[str, str, str, bool], bytes] | None = None) -> None:
        self._render = render
        self._simulated = simulated
        self._failure_log = FailureLog()

    @property
    def handlers(self) -> dict[Any, Any]:
        """Return the handlers by class of exception, as Starlette takes them."""
        from starlette.exceptions import HTTPException

        return {HTTPException: self._rejected, ProblemError: self._rejected, Exception: self._broken}

    def __call__(
        self, request: Request, status: int, sentence: str, headers: dict[str, str] | None = None
    ) -> ASGIApp:
        if self._render is None or not is_page(request.scope["path"]):
            return problem_response(status, sentence, headers, self._simulated)
        headers = {"vary": "accept", **(headers or {})}
        if not wants_page(request):
            return problem_response(status, sentence, headers, self._simulated)
        page = self._render(choose_heading(request, status), sentence, way_up(request.scope), self._simulated)
        return BytesResponse(page, PAGE_TYPE, status, headers)

    async def _rejected(self, request: Request, error: HTTPException | ProblemError) -> ASGIApp:
        detail, headers = str(error.detail), dict(error.headers or {})
        if error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
            detail = "No such path. The available paths are listed at /docs."
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(methods_at(request))
            detail = f"{request.method} is not allowed here: use {headers['Allow'].partition(',')[0]}."
        if detail == UNREADABLE_BODY:
            return self(request, 422, "The body is not valid JSON in UTF-8.", headers)
        return self(request, error.status_code, detail, headers)

    async def _broken(self, request: Request, error: Exception) -> ASGIApp:
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
    return accepts_pages(request.scope["headers"])


def accepts_pages(fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Check that header fields name HTML as an accepted answer."""
    return any(name == b"accept" and b"text/html" in value for name, value in fields)


def choose_heading(request: Request, status: int) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return "Page not found"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "Not available"
    return INVALID if request.method == "GET" else "Request failed"


def way_up(scope: Scope) -> str:
    """Return the relative path from the requested path to the pages. It also works behind a proxy with a prefix."""
    path: bytes = scope["raw_path"]
    return "../" * min(path.count(b"/") - 1, MAX_STEPS_UP)


def methods_at(request: Request) -> list[str]:
    """Return the allowed methods of a path. Starlette has those of the first of several routes only.

    HEAD is allowed with GET: the access middleware converts it.
    """
    from starlette.routing import Match  # 1 ms that the small application does not need

    found = []
    for method in METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            found += ["GET", "HEAD"] if method == "GET" else [method]
    return found
