"""Views of the API are the same with and without FastAPI; requests that the plain routes do not serve reach it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import pytest
from starlette.types import ASGIApp

from memwatch_web import plain_routes
from memwatch_web.api_app import create_api
from memwatch_web.app import create_app
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatchd.daemon import Daemon
from memwatchd.settings.load import load
from memwatchd.web_app import create_services
from support.paths import MACHINES

VIEWS = [route.path for route in (*plain_routes.MEMORY, *plain_routes.PROGRAMS, *plain_routes.ALERTS)]
MACHINE = MACHINES / "strix-halo"
# They examine this machine at each request, or as long as one runs.
LIVE = {"/api/v1/backends", "/api/v1/doctor"}


class Answer(NamedTuple):
    """Response of an ASGI application."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Apps(NamedTuple):
    """Both applications of one daemon."""

    plain: ASGIApp
    api: ASGIApp


def answer_of(app: ASGIApp, method: str, path: str, query: str = "", accept: str = "*/*") -> Answer:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"accept", accept.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 6360),
    }
    asyncio.run(asyncio.wait_for(_call(app, scope, receive, send), 20))
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], dict(sent[0]["headers"]), body)


async def _call(app: ASGIApp, *arguments: Any) -> None:
    await app(*arguments)


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    roots = {"procfs": MACHINE / "proc", "sysfs": MACHINE / "sys", "rootfs": MACHINE / "root"}
    settings = load({flag: str(folder) for flag, folder in roots.items()}, {})
    daemon = Daemon(settings, lambda: settings)
    daemon.sampler.start()
    daemon.first_tick()
    services = create_services(daemon, MetricsEndpoint(daemon.monitor, daemon.exporter()))
    api = create_api(services)
    yield Apps(create_app(services, api), api)
    daemon.stop()


@pytest.mark.parametrize("path", sorted({*VIEWS} - LIVE))
def test_views_are_the_same_with_and_without_fastapi(apps: Apps, path: str) -> None:
    plain, api = (answer_of(app, "GET", path) for app in apps)

    assert plain.status == api.status == 200
    assert plain.body == api.body
    assert plain.headers.items() - api.headers.items() <= {(b"vary", b"Accept-Encoding")}  # of the compression


@pytest.mark.parametrize("path", VIEWS)
def test_unknown_parameters_of_views_are_refused(apps: Apps, path: str) -> None:
    refused = answer_of(apps.plain, "GET", path, "range=30d")

    assert refused.status == 422
    assert json.loads(refused.body)["detail"] == f"unknown parameter 'range' for {path}: this path takes none."


def test_other_methods_at_plain_routes_name_the_allowed_ones(apps: Apps) -> None:
    """GET is a plain route, POST of the same path is not. Of pages, both are."""
    answers = {path: answer_of(apps.plain, "PUT", path) for path in ("/", "/alerts", "/fit", "/api/v1/silences")}

    assert {one.status for one in answers.values()} == {405}
    assert {path: one.headers[b"allow"] for path, one in answers.items()} == {
        "/": b"GET, HEAD",
        "/alerts": b"GET, HEAD, POST",
        "/fit": b"GET, HEAD, POST",
        "/api/v1/silences": b"GET, HEAD, POST",
    }
    static = answer_of(apps.plain, "POST", "/static/app.css")
    assert (static.status, static.headers[b"allow"]) == (405, b"GET, HEAD")


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/processes/abc", "", 422),
        ("/processes/0", "", 422),
        ("/processes/2147483648", "", 422),
        ("/processes/99999999999999999999", "", 422),
        ("/processes/٣", "", 422),
        ("/processes/2147483647", "", 404),
        ("/live", "page=process&pid=x", 422),
        ("/live", "page=process&pid=2147483647", 404),
        ("/live", "page=nothing", 422),
        ("/incidents/" + "x" * 500, "", 404),
        ("/machines/" + "x" * 500, "", 404),
        ("/history/", "", 307),
        ("/nothing", "", 404),
        ("/static/nothing", "", 404),
    ],
)
def test_invalid_paths_and_parameters_get_a_page_or_a_detail(
    apps: Apps, path: str, query: str, status: int
) -> None:
    as_json, page = (answer_of(apps.plain, "GET", path, query, accept) for accept in ("*/*", "text/html"))

    assert as_json.status == page.status == status
    if status != 307:
        assert len(json.loads(as_json.body)["detail"]) < 400
    if status != 307 and not path.startswith(("/live", "/static")):
        assert b"</html>" in page.body
