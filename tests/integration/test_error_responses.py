"""Error responses: pages for browsers, problem+json for programs."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest

from memwatch_web.asgi.problems import MAX_STEPS_UP
from memwatch_web.asgi.routes import Route
from memwatch_web.pages_app import PAGES
from support.daemon_process import Answer, RunningDaemon, get, running_daemon
from support.waiting import MAX_WAIT_SECONDS

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
PROBLEM = "application/problem+json"
PAGE = "text/html; charset=utf-8"
ERRORS = [
    ("/histroy", 404, "Page not found", "No such path."),
    ("/no/such/page/", 404, "Page not found", "No such path."),
    ("/processes?by=%3Cb%3E", 422, "Invalid request", "by is '&lt;b&gt;': use one of process,"),
    ("/processes?sort=xx", 422, "Invalid request", "sort is 'xx'"),
    ("/processes?by=user&by=unit", 422, "Invalid request", "by is given 2 times: give it once."),
    ("/fit?bytes=5GiB&bytes=1", 422, "Invalid request", "bytes is given 2 times: give it once."),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A simulated machine, which both kinds of errors mention."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--demo", "strix-halo") as running:
        yield running


class Links(HTMLParser):
    """Parser that collects the links and assets of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "src") and value and value[0] != "#"]


@pytest.mark.parametrize(("path", "status", "heading", "reason"), ERRORS)
def test_browser_gets_a_page(daemon: RunningDaemon, path: str, status: int, heading: str, reason: str) -> None:
    """The response has the status and the headers of every page."""
    answer, usual = daemon.get(path, Accept=BROWSER), daemon.get("/about", Accept=BROWSER)

    assert (answer.status, answer.headers["content-type"]) == (status, PAGE)
    assert f"<h1>{heading}</h1>" in answer.text
    assert reason.replace("'", "&#39;") in answer.text
    assert "<b>Simulated data</b>" in answer.text
    assert answer.headers["vary"].lower() == "accept, accept-encoding"
    for name in ("content-security-policy", "x-content-type-options", "referrer-policy", "memwatch-simulated"):
        assert answer.headers[name] == usual.headers[name]


@pytest.mark.parametrize("route", PAGES, ids=lambda route: f"{route.method} {route.path}")
def test_repeated_parameter_is_refused_by_every_page(daemon: RunningDaemon, route: Route) -> None:
    """Not only by those that read it: the last one would win silently, or the first one."""
    path = re.sub(r"{[a-z_]+}", "1", route.path)
    answer = get(daemon.port, f"{path}?form=wide&form=narrow", method=route.method)

    assert answer.status == 422
    assert "is given 2 times: give it once." in answer.text


@pytest.mark.parametrize(("path", "status", "heading"), [one[:3] for one in ERRORS])
@pytest.mark.parametrize("accept", ["", "*/*", "application/json"])
def test_program_gets_problem_json(
    daemon: RunningDaemon, accept: str, path: str, status: int, heading: str
) -> None:
    """Also with `*/*`, as curl sends it. Vary separates both forms in caches."""
    answer = daemon.get(path, **({"Accept": accept} if accept else {}))

    assert (answer.status, answer.headers["content-type"]) == (status, PROBLEM)
    assert answer.json["detail"]
    assert heading not in answer.text
    assert answer.headers["vary"] == "accept"


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing", "/api", "/api/v1/growth?limit=x", "/live?page=x", "/static/nothing.css"]
)
def test_api_errors_are_never_pages(daemon: RunningDaemon, path: str) -> None:
    answer = daemon.get(path, Accept=BROWSER)

    assert answer.status in (404, 422)
    assert answer.headers["content-type"] == PROBLEM


@pytest.mark.parametrize("path", ["/nothing", "/no/such/page", "/no/such/folder/", "/a%2Fb/c"])
def test_links_of_an_error_page_are_valid_at_any_depth(daemon: RunningDaemon, path: str) -> None:
    """Also behind a proxy with a path prefix."""
    links = Links(daemon.get(path, Accept=BROWSER).text).found
    behind_proxy = {urljoin(f"http://proxy/gpu1{path}", link) for link in links}

    assert {"http://proxy/gpu1/", "http://proxy/gpu1/processes", "http://proxy/gpu1/static/app.css"} <= behind_proxy
    for link in behind_proxy:
        assert daemon.get(link.removeprefix("http://proxy/gpu1")).status == 200, link


def test_deep_path_makes_no_large_page(daemon: RunningDaemon) -> None:
    """Unbounded, 8,000 slashes in each of fifteen links would be 360 kB."""
    answer = daemon.get("/x" * 4000, Accept=BROWSER)

    assert answer.status == 404
    assert len(answer.body) < 4000 + 40 * len("../") * MAX_STEPS_UP


def test_invalid_form_gets_a_page(daemon: RunningDaemon) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    try:
        connection.request("POST", "/alerts", b"hours=x&reason=y", {"Accept": BROWSER})
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()

    assert answer.status == 422
    assert "<h1>Request failed</h1>" in answer.text
    assert "hours is &#39;x&#39;" in answer.text
