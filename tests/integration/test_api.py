"""The API contract: responses match OpenAPI, and invalid requests get a precise error."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import memwatch_web
from memwatch.core.model import Absent
from support.api_schema import check_answer
from support.daemon_process import RunningDaemon, get, running_daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run one daemon for all requests of this module."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--interval", "100ms") as running:
        yield running


PARTS = {
    "snapshot": "Snapshot",
    "pools": "Pool[]",
    "shares": "Share[]",
    "devices": "Device[]",
    "processes": "Process[]",
    "pressure": "Pressure[]",
    "collectors": "Collector[]",
    "alerts": "Alert[]",
    "events": "Event[]",
    "backends": "Backends",
    "history": "History",
    "owners": "Owners",
    "growth": "Growth",
}


@pytest.mark.parametrize("part", PARTS)
def test_every_endpoint_matches_its_schema(daemon: RunningDaemon, part: str) -> None:
    """The bytes fit the model in OpenAPI, without extra fields."""
    answer = daemon.get(f"/api/v1/{part}")

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    check_answer(answer.body, PARTS[part])


def test_endpoints_match_the_snapshot(daemon: RunningDaemon) -> None:
    """An endpoint and the same part of the snapshot have the same fields."""
    snapshot = daemon.snapshot()

    assert snapshot["pools"][0].keys() == daemon.get("/api/v1/pools").json[0].keys()
    assert snapshot["total"]["size_bytes"] == sum(pool["size_bytes"] for pool in snapshot["pools"])
    assert snapshot["schema"] == 1


def test_absent_values_are_null_with_a_reason(daemon: RunningDaemon) -> None:
    """`absent` names each null field with its reason."""
    for pool in daemon.get("/api/v1/pools").json:
        for name in [name for name, value in pool.items() if value is None]:
            assert pool["absent"][name] in {reason.value for reason in Absent}


def test_history_returns_recorded_buckets(daemon: RunningDaemon) -> None:
    """After a few ticks each bucket has min <= avg <= max."""
    since = time.time() - 10
    daemon.wait_for(
        f"/api/v1/history?series=pool.ram.used_bytes,pressure.ram.ratio&from={since}&points=100",
        lambda history: len(history["series"][1]["unix"]) >= 3,
    )
    history = daemon.get(f"/api/v1/history?series=pool.ram.used_bytes&points=2&from={since}").json

    series = history["series"][0]
    assert series["unit"] == "bytes"
    buckets = list(zip(series["min"], series["avg"], series["max"], strict=True))
    # A busy machine may start its ticks late, which leaves a gap.
    known = [bucket for bucket in buckets if bucket != (None, None, None)]
    assert 1 <= len(known) <= 3
    for low, mean, high in known:
        assert low <= mean <= high
    assert all(history["from"] <= at <= history["to"] for at in series["unix"])


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("history?points=-1", "points is '-1'"),
        ("history?points=1e30", "points is '1e30'"),
        ("history?points=NaN", "points is 'NaN'"),
        ("history?from=NaN", "from is 'NaN': give Unix seconds or a time such as"),
        ("history?from=2&to=1", "from must be earlier than to"),
        ("history?to=1e400", "to is '1e400'"),
        ("history?from=-1", "from is before 1970: use a time such as 2026-01-31T12:00:00Z."),
        ("ticks?from=-1", "from is before 1970"),
        ("ticks?to=-1", "to is before 1970"),
        ("history?from=yesterday", "from is 'yesterday'"),
        ("history?from=1_000", "from is '1_000'"),
        ("history?format=xml", "format is 'xml': input should be 'json' or 'csv'"),
        ("history?series=", "series is empty: leave it out for the used bytes of every pool."),
        ("history?series=nonsense", "series is 'nonsense': no such series. Available:"),
        (
            "history?range=30d",
            "unknown parameter 'range' for /api/v1/history: use series, from, to, points, format.",
        ),
        ("fit?need=5GiB", "unknown parameter 'need' for /api/v1/fit: use bytes, hidden_size,"),
        ("processes/1/pss?now", "unknown parameter 'now' for /api/v1/processes/1/pss: this path takes none."),
        ("snapshot?pools=", "unknown parameter 'pools' for /api/v1/snapshot: this path takes none."),
        ("events?limit=0", "limit is '0'"),
        ("events?limit=5&limit=6", "limit is given 2 times: give it once."),
        ("history?from=yesterday&from=1", "from is given 2 times: give it once."),
        ("fit?bytes=5GiB&bytes=1", "bytes is given 2 times: give it once."),
        ("stream?events=everything", "events is 'everything': use some of snapshot, pressure, event"),
    ],
)
def test_invalid_parameter_is_named_in_the_error(daemon: RunningDaemon, query: str, reason: str) -> None:
    """422 as problem+json with the name, the value, and valid input."""
    answer = daemon.get(f"/api/v1/{query}")

    assert answer.status == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert reason in answer.json["detail"]
    assert answer.json["status"] == 422


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(path="history", name="series", value="\x00")
@example(path="history", name="points", value="9" * 5000)
@example(path="history", name="from", value="0001-01-01T00:00:00Z")
@given(
    path=st.sampled_from(["history", "events", "snapshot", "stream"]),
    name=st.sampled_from(["series", "from", "to", "points", "limit", "nonsense"]) | st.text(max_size=10),
    value=st.text(max_size=60) | st.integers().map(str) | st.floats().map(str),
)
def test_arbitrary_query_never_causes_a_server_error(
    daemon: RunningDaemon, path: str, name: str, value: str
) -> None:
    """Any query string gets 200 or 422, never 500."""
    if path == "stream":
        name, value = "events", value or "x"
    answer = daemon.get(
        f"/api/v1/{path}?{quote(name, safe='', errors='replace')}={quote(value, safe='', errors='replace')}"
    )

    assert answer.status in {200, 422}, (answer.status, answer.body)
    json.loads(answer.body)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/static/../../etc/passwd",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/api/v1/",
        "/static/",
    ],
)
def test_unknown_path_is_404_and_serves_no_file(daemon: RunningDaemon, path: str) -> None:
    """Nothing outside the list of static files is served."""
    answer = daemon.get(path)

    assert answer.status == 404
    assert "root:" not in answer.text
    assert answer.json["title"] == "Not Found"


def test_foreign_host_header_is_rejected_everywhere(daemon: RunningDaemon) -> None:
    """400 with the setting that allows the name."""
    for path in ("/", "/metrics", "/healthz", "/api/v1/snapshot", "/api/v1/stream"):
        answer = daemon.get(path, Host="evil.example")

        assert answer.status == 400
        assert "'evil.example'" in answer.json["detail"]
        assert "access-control-allow-origin" not in answer.headers


def test_every_response_has_security_headers_and_a_date(daemon: RunningDaemon) -> None:
    """Foreign scripts are blocked, and a proxy can compute the age of a response."""
    for path in ("/", "/metrics", "/docs", "/nothing"):
        headers = daemon.get(path).headers

        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["date"].endswith("GMT")
        assert "server" not in headers


def test_openapi_lists_every_endpoint(daemon: RunningDaemon) -> None:
    """The description is served offline and complete."""
    paths = daemon.get("/openapi.json").json["paths"]

    assert {f"/api/v1/{part}" for part in PARTS} | {
        "/api/v1/stream",
        "/healthz",
        "/readyz",
        "/metrics",
    } <= paths.keys()


def test_every_operation_has_a_sentence_in_place_of_a_name(daemon: RunningDaemon) -> None:
    """A reader of /docs sees what each does without opening it."""
    paths = daemon.get("/openapi.json").json["paths"]
    said = [operation["summary"] for methods in paths.values() for operation in methods.values()]

    assert len(said) > 30
    assert [one for one in said if " " not in one or not one.endswith((".", ":")) or "`" in one] == []


def test_post_to_a_read_only_endpoint_is_405(daemon: RunningDaemon) -> None:
    answer = get(daemon.port, "/api/v1/snapshot", method="POST")

    assert answer.status == 405
    assert answer.json["detail"] == "POST is not allowed here: use GET."


def test_history_default_range_is_cut_at_1970(daemon: RunningDaemon) -> None:
    """The hour that ends at the first minute of 1970 is that minute."""
    found = daemon.get("/api/v1/history?to=60").json

    assert (found["from"], found["to"]) == (0.0, 60.0)


def test_missing_parameter_error_shows_an_example(daemon: RunningDaemon) -> None:
    """The error never mentions a None that the client has not sent."""
    answer = get(daemon.port, "/api/v1/silences?target=ram", method="POST")

    assert answer.status == 422
    assert answer.json["detail"] == "seconds is missing: give it, for example seconds=3600"


def test_every_page_is_html(daemon: RunningDaemon) -> None:
    for path in ("/", "/processes", "/about", "/docs", "/runbooks"):
        answer = daemon.get(path)

        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/html")
        assert b"<html" in answer.body


def test_static_files_have_etags(daemon: RunningDaemon) -> None:
    """Browsers revalidate a file and get 304 while it is unchanged."""
    root = Path(memwatch_web.__file__).parent / "static"
    assert (root / "app.css").exists()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            name = path.relative_to(root).as_posix()
            answer = daemon.get(f"/static/{name}")
            again = daemon.get(f"/static/{name}", If_None_Match=answer.headers["etag"])

            assert answer.status == 200
            assert answer.body == path.read_bytes()
            assert again.status == 304
