"""Pages and API behind the application that is always there: answers and refusals of any request."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, MutableMapping
from inspect import signature
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from memwatch_web.api_app import api_routes, create_api
from memwatch_web.asgi.caller import CALLER, HEAD_ONLY, Caller
from memwatch_web.asgi.lazy_app import AppLoader, LazyApp
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatch_web.pages_app import create_pages_app
from memwatchd.daemon import Daemon
from memwatchd.settings.load import load
from memwatchd.web_app import create_page_services, create_services
from support.ingest_client import own_ticks
from support.open_things import kept_open
from support.paths import MACHINES
from support.waiting import MAX_WAIT_SECONDS

ROUTES = tuple(api_routes())
AT_ONCE = {"/metrics", "/healthz", "/readyz"}
# Their handlers take the services alone.
VIEWS = [
    one.path
    for one in ROUTES
    if one.method == "GET" and len(signature(one.handler).parameters) == 1 and one.path not in AT_ONCE
]
MACHINE = MACHINES / "strix-halo"
JSON = "application/json"
# They examine this machine at each request, or as long as one runs.
LIVE = {"/api/v1/backends", "/api/v1/doctor"}
NOT_THERE = {"/api/v1/last-words"}
OWN = f'"pid":{os.getpid()},"start_ticks":{own_ticks()}'
LEASE = f'{{{OWN},"bytes":4096,"target":"ram","seconds":1}}'
# Requests of clients, pages, scripts and the library. This process does not run on the simulated machine.
ORDINARY = [
    ("GET", "/api/v1/events?limit=100", "", 200),
    ("GET", "/api/v1/growth?limit=20", "", 200),
    ("GET", "/api/v1/growth?since=600s&limit=5", "", 200),
    ("GET", "/api/v1/history", "", 200),
    ("GET", "/api/v1/history?series=pool.ram.used_bytes&series=self.rss_bytes&from=0&to=9e9&points=20", "", 200),
    ("GET", "/api/v1/history?series=pool.ram.used_bytes,self.rss_bytes&format=csv", "", 200),
    ("GET", "/api/v1/incidents?limit=20", "", 200),
    ("GET", "/api/v1/incidents/none", "", 404),
    ("GET", "/api/v1/last-words", "", 404),
    ("GET", "/api/v1/machines/none", "", 404),
    ("GET", "/api/v1/owners?by=user", "", 200),
    ("GET", "/api/v1/processes/4194303/pss", "", 404),
    ("GET", "/api/v1/stream", "", 200),
    ("GET", "/api/v1/stream?events=pressure", "", 200),
    ("GET", "/api/v1/stream?events=nothing", "", 422),
    ("GET", "/api/v1/stream?form=compact", "", 200),
    ("GET", "/api/v1/ticks?from=1.5&to=2026-01-31T12:00:00Z&limit=10", "", 200),
    ("POST", "/api/v1/marks", '{"text": "Before VAE Load"}', 200),
    ("POST", "/api/v1/marks", '{"text": "é\\u0000", "pid": 1}', 200),
    ("POST", "/api/v1/reports", f'{{{OWN},"claims":[{{"name":"x","gpu":"0000:01:00.0","ooms":1}}]}}', 422),
    ("POST", "/api/v1/leases", LEASE, 422),
    ("POST", "/api/v1/leases", LEASE.replace("ram", "none"), 422),
    ("DELETE", "/api/v1/leases/none", "", 404),
    ("POST", "/api/v1/alerts/test", "", 409),
    ("POST", "/api/v1/silences?seconds=60&event=none&target=ram&comment=upgrade", "", 422),
    ("POST", "/api/v1/silences?seconds=1.25&target=ram", "", 200),
    ("DELETE", "/api/v1/silences/none", "", 404),
    ("POST", "/api/v1/release?seconds=1.5", "", 200),
    ("GET", "/favicon.ico", "", 404),
    ("GET", "/static/old.css", "", 404),
    ("GET", "/processes/1/2", "", 404),
]


class Answer(NamedTuple):
    """Response of an ASGI application."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def answer_of(
    app: ASGIApp, method: str, path: str, query: str = "", accept: str = "*/*", body: str = "", media: str = JSON
) -> Answer:
    sent: list[MutableMapping[str, Any]] = []
    bodies = [body.encode("utf-8", "surrogatepass")]

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        if not bodies:
            await asyncio.Event().wait()  # a server answers again only when the client has left
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

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
    asyncio.run(asyncio.wait_for(_call(app, scope, receive, send), MAX_WAIT_SECONDS))
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], dict(sent[0]["headers"]), content)


async def _call(app: ASGIApp, *arguments: Any) -> None:
    await app(*arguments)


@pytest.fixture(scope="module")
def site() -> Iterator[LazyApp]:
    """All applications of one daemon, without access control."""
    roots = {"procfs": MACHINE / "proc", "sysfs": MACHINE / "sys", "rootfs": MACHINE / "root"}
    loaded = load({flag: str(folder) for flag, folder in roots.items()}, {})
    with kept_open():  # a daemon that stops leaves its files to the end of the process
        daemon = Daemon(loaded, lambda _: loaded)
        daemon.sampler.start()
        daemon.first_tick()
    services, endpoint = create_services(daemon), MetricsEndpoint(daemon.monitor, daemon.exporter)
    pages, api = create_pages_app(create_page_services(daemon, services)), create_api(services, endpoint)
    loaders = AppLoader("the pages", lambda: pages), AppLoader("the API", lambda: api)
    yield LazyApp(daemon.monitor, AppLoader("the metrics", endpoint.prepare), *loaders)
    daemon.stop()


def check(answer: Answer) -> None:
    """Fail if an answer is neither data nor a refusal with a detail."""
    assert answer.status in (200, 307, 404, 405, 409, 422)
    if answer.status not in (200, 307):
        assert answer.headers[b"content-type"] == b"application/problem+json"
        assert json.loads(answer.body)["detail"].isprintable()


@pytest.mark.parametrize("path", sorted({*VIEWS} - LIVE - NOT_THERE))
def test_views_return_json(site: LazyApp, path: str) -> None:
    answer = answer_of(site, "GET", path)

    assert (answer.status, answer.headers[b"content-type"]) == (200, b"application/json")
    json.loads(answer.body)


@pytest.mark.parametrize(
    ("method", "target", "body", "status"), ORDINARY, ids=[" ".join(one[:2]) for one in ORDINARY]
)
def test_ordinary_requests_are_answered(site: LazyApp, method: str, target: str, body: str, status: int) -> None:
    path, _, query = target.partition("?")

    answer = answer_of(site, method, path, query, body=body)

    assert answer.status == status
    check(answer)


@pytest.mark.parametrize("slash", ["", "/"])
def test_paths_answered_at_once_refuse_other_methods(site: LazyApp, slash: str) -> None:
    """Their requests with GET reach no other application."""
    answers = [answer_of(site, "POST", path + slash) for path in sorted(AT_ONCE)]

    assert [one.status for one in answers] == [307 if slash else 405] * 3
    if not slash:
        assert {one.headers[b"allow"] for one in answers} == {b"GET, HEAD"}


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
PATHS = [one.path for one in ROUTES if one.method == "GET" and one.path not in LIVE | AT_ONCE]
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
def test_any_query_is_answered_or_refused(
    site: LazyApp, path: str, part: str, fields: list[tuple[str, str]]
) -> None:
    target, query = re.sub(r"{[a-z_]+}", lambda _: part, path), urlencode(fields)

    check(answer_of(site, "GET", target, query))


@pytest.mark.parametrize(
    ("target", "detail"),
    [
        ("/api/v1/events?limit=1&limit=2", "limit is given 2 times: give it once."),
        ("/api/v1/events?limit=1.5", "limit is '1.5': input should be a valid integer"),
        ("/api/v1/events?limit=1001", "limit is '1001': input should be less than or equal to 1000"),
        (
            "/api/v1/incidents/a?incident_id=b",
            "unknown parameter 'incident_id' for /api/v1/incidents/a: this path takes none.",
        ),
        ("/api/v1/history?from_=1", "unknown parameter 'from_' for /api/v1/history: use series, from, to, points,"),
    ],
)
def test_refusal_names_the_parameter(site: LazyApp, target: str, detail: str) -> None:
    refused = answer_of(site, "GET", *target.split("?"))

    assert refused.status == 422
    assert json.loads(refused.body)["detail"].startswith(detail)


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
def test_any_body_is_answered_or_refused(site: LazyApp, path: str, body: str, media: str) -> None:
    check(answer_of(site, "POST", path, body=body, media=media))


@pytest.mark.parametrize("path", VIEWS)
def test_unknown_parameters_of_views_are_refused(site: LazyApp, path: str) -> None:
    refused = answer_of(site, "GET", path, "range=30d")

    assert refused.status == 422
    assert json.loads(refused.body)["detail"] == f"unknown parameter 'range' for {path}: this path takes none."


def test_other_methods_name_the_allowed_ones(site: LazyApp) -> None:
    answers = {path: answer_of(site, "PUT", path) for path in ("/", "/alerts", "/fit", "/api/v1/silences")}

    assert {one.status for one in answers.values()} == {405}
    assert {path: one.headers[b"allow"] for path, one in answers.items()} == {
        "/": b"GET, HEAD",
        "/alerts": b"GET, HEAD, POST",
        "/fit": b"GET, HEAD, POST",
        "/api/v1/silences": b"GET, HEAD, POST",
    }
    static = answer_of(site, "POST", "/static/app.css")
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
    site: LazyApp, path: str, query: str, status: int
) -> None:
    as_json, page = (answer_of(site, "GET", path, query, accept) for accept in ("*/*", "text/html"))

    assert as_json.status == page.status == status
    if status != 307:
        assert len(json.loads(as_json.body)["detail"]) < 400
    if status != 307 and not path.startswith(("/live", "/static")):
        assert b"</html>" in page.body
