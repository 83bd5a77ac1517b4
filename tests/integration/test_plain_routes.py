"""Responses are the same with and without FastAPI; requests that the plain routes do not serve reach it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch_web import plain_routes
from memwatch_web.api.parameters import signature_of
from memwatch_web.api_app import create_api
from memwatch_web.app import create_app
from memwatch_web.asgi.caller import CALLER, Caller
from memwatch_web.asgi.sse import HEAD_ONLY
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatchd.daemon import Daemon
from memwatchd.settings.load import load
from memwatchd.web_app import create_services
from support.ingest_client import own_ticks
from support.paths import MACHINES

ROUTES = (*plain_routes.MEMORY, *plain_routes.PROGRAMS, *plain_routes.ALERTS)
VIEWS = [one.path for one in ROUTES if one.method == "GET" and not signature_of(one.handler)]
MACHINE = MACHINES / "strix-halo"
JSON = "application/json"
# They examine this machine at each request, or as long as one runs.
LIVE = {"/api/v1/backends", "/api/v1/doctor"}
NOT_THERE = {"/api/v1/last-words"}
# Differences between two responses: times by the clock, numbers of events and leases, and the first of two reads.
VARYING = re.compile(rb'1[0-9]{9}\.[0-9]+|"seq":[0-9]+|"id":"[0-9a-f]+"|"(left|expires)_[a-z]+":[0-9.]+')
OWN = f'"pid":{os.getpid()},"start_ticks":{own_ticks()}'
LEASE = f'{{{OWN},"bytes":4096,"target":"ram","seconds":1}}'
# Requests of clients, pages, scripts and the library.
ORDINARY = [
    ("GET", "/api/v1/events?limit=100", ""),
    ("GET", "/api/v1/growth?limit=20", ""),
    ("GET", "/api/v1/growth?since=600s&limit=5", ""),
    ("GET", "/api/v1/history", ""),
    ("GET", "/api/v1/history?series=pool.ram.used_bytes&series=self.rss_bytes&from=0&to=9e9&points=20", ""),
    ("GET", "/api/v1/history?series=pool.ram.used_bytes,self.rss_bytes&format=csv", ""),
    ("GET", "/api/v1/incidents?limit=20", ""),
    ("GET", "/api/v1/incidents/none", ""),
    ("GET", "/api/v1/last-words", ""),
    ("GET", "/api/v1/machines/none", ""),
    ("GET", "/api/v1/owners?by=user", ""),
    ("GET", "/api/v1/processes/4194303/pss", ""),
    ("GET", "/api/v1/stream", ""),
    ("GET", "/api/v1/stream?events=pressure", ""),
    ("GET", "/api/v1/stream?events=nothing", ""),
    ("GET", "/api/v1/stream?form=compact", ""),
    ("GET", "/api/v1/ticks?from=1.5&to=2026-01-31T12:00:00Z&limit=10", ""),
    ("POST", "/api/v1/marks", '{"text": "Before VAE Load"}'),
    ("POST", "/api/v1/marks", '{"text": "é\\u0000", "pid": 1}'),
    ("POST", "/api/v1/reports", f'{{{OWN},"claims":[{{"name":"x","gpu":"0000:01:00.0","ooms":1}}]}}'),
    ("POST", "/api/v1/leases", LEASE),
    ("POST", "/api/v1/leases", LEASE.replace("ram", "none")),
    ("DELETE", "/api/v1/leases/none", ""),
    ("POST", "/api/v1/alerts/test", ""),
    ("POST", "/api/v1/silences?seconds=60&event=none&target=ram&comment=upgrade", ""),
    ("POST", "/api/v1/silences?seconds=1.25&event=none", ""),
    ("DELETE", "/api/v1/silences/none", ""),
    ("POST", "/api/v1/release?seconds=1.5", ""),
    ("GET", "/favicon.ico", ""),
    ("GET", "/static/old.css", ""),
    ("GET", "/processes/1/2", ""),
]


class Answer(NamedTuple):
    """Response of an ASGI application."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Apps(NamedTuple):
    """Both applications of one daemon. `alone`: the first without the second behind it."""

    plain: ASGIApp
    api: ASGIApp
    alone: ASGIApp


def answer_of(
    app: ASGIApp, method: str, path: str, query: str = "", accept: str = "*/*", body: str = "", media: str = JSON
) -> Answer:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body.encode("utf-8", "surrogatepass"), "more_body": False}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"accept", accept.encode()), (b"content-type", media.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 6360),
        CALLER: Caller("a test", 0, is_operator=True),
        HEAD_ONLY: True,  # a stream ends
    }
    asyncio.run(asyncio.wait_for(_call(app, scope, receive, send), 20))
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], dict(sent[0]["headers"]), content)


async def _call(app: ASGIApp, *arguments: Any) -> None:
    await app(*arguments)


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    """Fake API that no request may reach."""
    raise AssertionError(f"{scope['path']} needs FastAPI")


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    roots = {"procfs": MACHINE / "proc", "sysfs": MACHINE / "sys", "rootfs": MACHINE / "root"}
    loaded = load({flag: str(folder) for flag, folder in roots.items()}, {})
    daemon = Daemon(loaded, lambda _: loaded)
    daemon.sampler.start()
    daemon.first_tick()
    services = create_services(daemon, MetricsEndpoint(daemon.monitor, daemon.exporter()))
    api = create_api(services)
    yield Apps(create_app(services, api), api, create_app(services, refuse))
    daemon.stop()


@pytest.mark.parametrize("path", sorted({*VIEWS} - LIVE - NOT_THERE))
def test_views_are_the_same_with_and_without_fastapi(apps: Apps, path: str) -> None:
    plain, api = (answer_of(app, "GET", path) for app in (apps.alone, apps.api))

    assert plain.status == api.status == 200
    assert masked(plain) == masked(api)


def masked(answer: Answer) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return what must be the same with and without FastAPI. Compression adds a header, FastAPI alone has none."""
    left_out = (b"vary", b"content-length")
    headers = {name: value for name, value in answer.headers.items() if name not in left_out}
    return answer.status, headers, VARYING.sub(b"", answer.body)


@pytest.mark.parametrize(("method", "target", "body"), ORDINARY, ids=[" ".join(one[:2]) for one in ORDINARY])
def test_ordinary_requests_get_the_same_answer_without_fastapi(
    apps: Apps, method: str, target: str, body: str
) -> None:
    path, _, query = target.partition("?")

    plain, api = (answer_of(app, method, path, query, body=body) for app in (apps.alone, apps.api))

    assert masked(plain) == masked(api)


def test_silences_are_the_same_with_and_without_fastapi(apps: Apps) -> None:
    """Each response lists the silences: one more than before."""
    for app in (apps.alone, apps.api):
        added = answer_of(app, "POST", "/api/v1/silences", "seconds=60&target=ram&comment=upgrade")

    first, second = json.loads(added.body)
    times = ("id", "created_unix", "until", "until_unix")
    assert added.status == 200
    assert {name: value for name, value in first.items() if name not in times} == {
        name: value for name, value in second.items() if name not in times
    }


NAMES = st.sampled_from(
    ["limit", "since", "by", "series", "from", "from_", "to", "points", "format", "events", "form", "last-event-id"]
)
VALUES = st.one_of(
    st.sampled_from(
        ["", "1", "01", "+1", " 1", "1.0", "1e2", "1_0", "-0", "0", "1000", "1001", "2000", "9" * 30, "٣"]
    ),
    st.sampled_from(
        ["null", "true", "10m", "user", "job", "csv", "json", "compact", "full", "pressure,event", "nan"]
    ),
    st.sampled_from(["pool.ram.used_bytes", "2026-01-31T12:00:00Z", "a,b", "inf"]),
    st.text(max_size=5),
)
PATHS = [one.path for one in ROUTES if one.method == "GET" and one.path not in LIVE]
PATHS += ["/api/v1/release"]  # of the other method: refused


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(PATHS),
    st.text("ab/.٣ 09\0", min_size=1, max_size=45),
    st.lists(st.tuples(NAMES, VALUES), max_size=3),
)
@example("/api/v1/processes/{pid}/pss", "09", [])
@example("/api/v1/processes/{pid}/pss", "9.0", [])
@example("/api/v1/events", "", [("limit", "1e2")])
@example("/api/v1/events", "", [("limit", "1"), ("limit", "2")])
@example("/api/v1/incidents/{incident_id}", "a" * 41, [])
@example("/api/v1/incidents/{incident_id}", "a", [("incident_id", "b")])
def test_any_query_gets_the_same_answer_with_and_without_fastapi(
    apps: Apps, path: str, part: str, fields: list[tuple[str, str]]
) -> None:
    target, query = re.sub(r"{[a-z_]+}", lambda _: part, path), urlencode(fields)

    plain, api = (answer_of(app, "GET", target, query) for app in (apps.plain, apps.api))

    assert masked(plain) == masked(api)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 1 << 61), st.floats(), st.text(max_size=4), st.just("x" * 301)
)
BODIES = st.dictionaries(
    st.sampled_from(["text", "pid", "start_ticks", "claims", "bytes", "target", "seconds", "name", "certain", "x"]),
    st.one_of(
        SCALARS,
        st.just(1),
        st.just("ram"),
        st.lists(st.dictionaries(st.sampled_from(["name", "device", "gpu", "ooms", "x"]), SCALARS), max_size=2),
    ),
)
POSTS = ["/api/v1/marks", "/api/v1/reports", "/api/v1/leases"]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(POSTS),
    st.one_of(BODIES.map(json.dumps), st.text(max_size=9)),
    st.sampled_from([JSON, JSON, "application/json; charset=utf-8", "text/plain", ""]),
)
@example("/api/v1/marks", '{"text":"a","text":"b"}', JSON)
@example("/api/v1/marks", '{"text":"a","pid":1.0}', JSON)
@example("/api/v1/marks", '{"text":"\\ud800"}', JSON)
@example("/api/v1/marks", "[" * 5000, JSON)
@example("/api/v1/leases", LEASE.replace(":1}", ":1e999}"), JSON)
@example("/api/v1/leases", LEASE.replace(":1}", ":NaN}"), JSON)
@example("/api/v1/leases", LEASE.replace(":1}", ':"1"}'), JSON)
def test_any_body_gets_the_same_answer_with_and_without_fastapi(
    apps: Apps, path: str, body: str, media: str
) -> None:
    plain, api = (answer_of(app, "POST", path, body=body, media=media) for app in (apps.plain, apps.api))

    assert masked(plain) == masked(api)


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
