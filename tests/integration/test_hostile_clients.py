"""Hostile and broken clients get an error or a closed connection, and other clients are unaffected."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.budget import within
from support.daemon_process import RunningDaemon, descriptors, get, kept_files, running_daemon
from support.hostile_requests import HOST, HOSTILE, request
from support.http_exchange import assert_quiet, complaints, exchange
from support.many_clients import LARGEST, Crowd, connections, slow_readers
from support.waiting import MAX_WAIT_SECONDS, Stopwatch, wait_until

MIB = 1 << 20
PAGE = resource.getpagesize()
# A lowered limit takes effect at the next scan of the processes.
OFTEN = '[processes]\ninterval = "1s"\n'

# Root, which may run the tests, is never refused. The user behind a proxy is not known.
PROXIED = b"X-Forwarded-For: 203.0.113.7\r\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run one daemon for all requests of this module; none of them may leave a log line."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--interval", "100ms") as running:
        yield running
        assert_quiet(running)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_request_takes_at_most_200_ms_of_cpu_time(daemon: RunningDaemon, name: str) -> None:
    """The right status, problem+json for errors, no CORS header, then a closed connection."""
    sent, allowed = HOSTILE[name]

    used, tries = [cpu_seconds(daemon)], []
    for _ in range(3):
        tries.append(exchange(daemon.port, sent))
        used.append(cpu_seconds(daemon))

    for answer in tries:
        assert answer.status in allowed, answer.received[:500]
        assert b"access-control-" not in answer.head
        if answer.status >= 400:
            assert b"content-type: application/problem+json" in answer.head
            assert json.loads(answer.body)["status"] == answer.status
    assert min(after - before for before, after in pairwise(used)) < 0.2
    assert daemon.get("/healthz").status == 200


def cpu_seconds(daemon: RunningDaemon) -> float:
    times = psutil.Process(daemon.pid).cpu_times()
    return float(times.user + times.system)


# This daemon has no state folder, and no process has that id.
NOTHING_HERE = ("/last-words", "/pss")


def documented_paths(daemon: RunningDaemon) -> list[str]:
    pages = [
        "/",
        "/processes",
        "/devices",
        "/alerts",
        "/about",
        "/docs",
        "/openapi.json",
        "/static/app.css",
        "/live",
    ]
    described = daemon.get("/openapi.json").json["paths"]
    paths = [*pages, *(path for path, operations in described.items() if "get" in operations)]
    return [path.replace("{pid}", "2147483647") for path in paths]


def test_head_is_get_without_the_body(daemon: RunningDaemon) -> None:
    """Same status, same headers, no body, and the connection stays open. A stream does not start."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    for path in documented_paths(daemon):
        if "{" in path:
            continue  # one process, answered once a second
        connection.request("HEAD", path)
        head = connection.getresponse()
        body = head.read()

        # /api/v1/fit and /room without a query are errors that name what is missing.
        expected = 404 if path.endswith(NOTHING_HERE) else 422 if path.endswith(("/fit", "/room")) else 200
        assert (head.status, body) == (expected, b""), path
        assert head.getheader("access-control-allow-origin") is None
        if not path.endswith(("/stream", "/live")):
            whole = daemon.get(path)
            assert {name.lower() for name, _ in head.getheaders()} == set(whole.headers), path
            assert head.getheader("content-type") == whole.headers["content-type"]
    connection.close()


# Forms of pages, which OpenAPI does not list.
FORMS = (("POST", "/alerts"),)


def has_post(path: str, described: dict[str, Any]) -> bool:
    return "post" in described.get(path, {}) or ("POST", path) in FORMS


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "POST", "PUT", "DELETE", "PATCH", "PROPFIND"])
def test_other_methods_are_405_everywhere(daemon: RunningDaemon, method: str) -> None:
    """The problem lists the allowed methods. Nothing is echoed, not even by TRACE."""
    described = daemon.get("/openapi.json").json["paths"]
    for path in documented_paths(daemon):
        if method.lower() in described.get(path, {}) or (method, path) in FORMS:
            continue
        answer = get(daemon.port, path, {"X_Secret": "echo"}, method)

        assert answer.status == 405, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["allow"] == ("GET, HEAD, POST" if has_post(path, described) else "GET, HEAD")
        assert b"echo" not in answer.body
        assert "access-control-allow-origin" not in answer.headers


def test_get_changes_nothing(daemon: RunningDaemon) -> None:
    """Every path is requested with parameters that ask for a change."""
    before = daemon.get("/api/v1/events?limit=1000").json
    for path in documented_paths(daemon):
        for query in ("", "?reload=1&action=delete&_method=POST", "?limit=1&points=1&page=about&events=event"):
            exchange(daemon.port, request(path.encode() + query.encode(), method=b"HEAD"))
            if not path.endswith(("/stream", "/live")):
                assert daemon.get(path + query, X_HTTP_Method_Override="DELETE").status in {200, 404, 422}

    after = daemon.get("/api/v1/events?limit=1000").json
    assert {event["seq"] for event in before} <= {event["seq"] for event in after}
    new = {event["kind"] for event in after} - {event["kind"] for event in before}
    # What may happen to this machine meanwhile.
    assert new <= {"late", "level", "oom_kill", "process.killed", "incident"}


def test_large_body_is_413_and_not_kept_in_memory(daemon: RunningDaemon) -> None:
    """Ten clients send 20 MB each. Each gets a complete 413, and the daemon does not grow."""
    head = request(fields=HOST + b"Content-Length: 20000000\r\n", method=b"POST")
    before = rss_bytes(daemon)

    answers = [exchange(daemon.port, head + bytes(20_000_000)) for _ in range(10)]

    assert [answer.status for answer in answers] == [413] * 10
    assert all(b"the maximum is 65536" in answer.body for answer in answers)
    assert rss_bytes(daemon) - before < 4 * MIB


def test_expect_100_continue_with_a_large_body_is_413(daemon: RunningDaemon) -> None:
    """The final status is sent without 100 Continue."""
    expecting = HOST + b"Content-Length: 20000000\r\nExpect: 100-continue\r\n"
    answer = exchange(daemon.port, request(fields=expecting, method=b"POST"))

    assert answer.status == 413


def test_pipelined_requests_are_answered_in_order(daemon: RunningDaemon) -> None:
    """Twenty different requests in one packet get twenty responses."""
    paths = ["/healthz", "/nothing", "/api/v1/pools", "/api/v1/history?points=-1"] * 5
    sent = b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths[:-1])
    received = exchange(daemon.port, sent + request(paths[-1].encode())).received

    assert [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]] == [200, 404, 200, 422] * 5


RUBBISH = st.binary(max_size=400)
WORDS = (
    b"GET POST \r \n \r\n\r\n : \x00 0 / /metrics HTTP/1.1 Host:localhost Content-Length: Connection: close chunked"
)
TOKENS = st.sampled_from([*WORDS.split(b" "), b" ", b"\r\n", b"Transfer-Encoding: chunked", b"Upgrade: h2c"])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=RUBBISH | st.lists(TOKENS | RUBBISH, max_size=30).map(b"".join))
def test_random_bytes_never_cause_a_server_error(daemon: RunningDaemon, sent: bytes) -> None:
    """No response or one below 500, and the next client is served."""
    received = b""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=0.02) as connection:
        connection.sendall(sent)
        try:
            while part := connection.recv(65536):
                received += part
        except TimeoutError:
            pass

    assert received == b"" or received.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 5" not in received
    assert daemon.get("/healthz").status == 200


def rss_bytes(daemon: RunningDaemon) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * PAGE


def seconds_until(
    true: Callable[[], bool], daemon: RunningDaemon, describe: Callable[[], object] = lambda: "not so"
) -> float:
    """Return the time until the condition holds, without the time in which the processes could not run."""
    watch = Stopwatch(daemon.pid)
    wait_until(true, describe=describe)
    return watch.seconds


def times_of(daemon: RunningDaemon, path: str, until: Callable[[], bool]) -> list[float]:
    """Return the sorted times of many requests, measured likewise. Each must be answered with 200."""
    times = []
    while not until():
        watch = Stopwatch(daemon.pid)
        assert daemon.get(path).status == 200
        times.append(watch.seconds)
        time.sleep(0.01)
    return sorted(times)


def percentile(times: list[float], part: float) -> float:
    return times[min(len(times) - 1, int(len(times) * part))]


def test_slow_senders_are_closed_after_ten_seconds(tmp_path: Path) -> None:
    """200 silent, half-sent and dripping connections are closed. Health, a stream and a scraper keep working."""
    half = b"GET /metrics HTTP/1.1\r\nHost: local"
    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(tmp_path))
        base = descriptors(daemon.pid)
        scraper = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
        scraper.request("GET", "/metrics")
        scraper.getresponse().read()
        (stream,) = stack.enter_context(connections(daemon, 1, b"GET /api/v1/stream HTTP/1.1\r\n" + HOST + b"\r\n"))
        began = time.monotonic()
        silent = stack.enter_context(connections(daemon, 70))
        halved = stack.enter_context(connections(daemon, 70, half))
        dripping = stack.enter_context(connections(daemon, 60, half))
        crowd = stack.enter_context(Crowd([*silent, *halved, *dripping]))
        answered_beside: list[int] = []

        def all_closed() -> bool:
            for one in dripping:
                if one not in crowd.closed_at and time.monotonic() % 1 < 0.1:
                    drip(one)
            return len(crowd.closed_at) == 200 or time.monotonic() - began > MAX_WAIT_SECONDS

        while not all_closed():
            assert daemon.get("/healthz").status == 200
            answered_beside.append(200 - len(crowd.closed_at))
            time.sleep(0.01)
        stream.recv(1 << 20)
        ticks = [stream.recv(1 << 20) for _ in range(2)]
        scraper.request("GET", "/metrics")

        assert len(crowd.closed_at) == 200
        assert min(crowd.closed_at.values()) - began > 5
        assert answered_beside[0] > 0
        assert all(b"event: snapshot" in tick for tick in ticks)
        assert scraper.getresponse().status == 200
        assert {crowd.first[one][:12] for one in halved} == {b"HTTP/1.1 408"}
        assert not any(one in crowd.first for one in silent)
        assert descriptors(daemon.pid) <= base + 2
        scraper.close()
        assert_quiet(daemon)


def drip(one: socket.socket) -> None:
    with suppress(OSError):
        one.send(b"h")


@pytest.mark.long
@pytest.mark.measure
def test_connection_flood_leaves_descriptors_for_others(tmp_path: Path) -> None:
    """With ulimit -n 64 and 300 silent connections, health is answered and collectors can open files."""
    with running_daemon(tmp_path, "--interval", "200ms", config=OFTEN) as daemon:
        base = descriptors(daemon.pid)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (64, 64))
        assert seconds_until(lambda: kept_files(daemon.pid) == 0, daemon) < 5
        until = time.monotonic() + 2

        with connections(daemon, 300):
            times = times_of(daemon, "/healthz", lambda: time.monotonic() > until)
            collectors = daemon.get("/api/v1/collectors").json
            held = descriptors(daemon.pid)
        assert seconds_until(lambda: descriptors(daemon.pid) <= base, daemon) < 5

        assert percentile(times, 0.98) < 0.1
        assert held < 64
        assert {one["state"] for one in collectors} <= {"ok", "unavailable"}
        assert_quiet(daemon)


def limit_with_free(pid: int, free: int) -> int:
    """Return the limit that leaves a process this number of descriptors. Those it has may have higher numbers."""
    taken = {int(one) for one in os.listdir(f"/proc/{pid}/fd")}
    return next(islice((one for one in count() if one not in taken), free - 1, None)) + 1


def test_descriptor_shortage_is_logged_once_and_ends(tmp_path: Path) -> None:
    """One log line, no traceback. Requests are accepted again once descriptors are free."""
    with running_daemon(tmp_path, config=OFTEN) as daemon:
        base = descriptors(daemon.pid)
        _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (base + 3, hard))
        wait_until(lambda: kept_files(daemon.pid) == 0)
        # asyncio accepts until none is left, then tries again after a second: 5 s for 40 that hung up.
        few = limit_with_free(daemon.pid, 8)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (few, hard))

        with connections(daemon, 40, b"GET /api/v1/stream HTTP/1.1\r\n" + HOST + b"\r\n"):
            wait_until(lambda: "out of system resource" in daemon.read_log())
            time.sleep(2)
        wait_until(lambda: daemon.get("/healthz").status == 200)

        log = daemon.read_log()
        assert log.count("out of system resource") == 1
        assert "Traceback" not in log


@pytest.mark.measure
def test_clients_that_never_read_use_bounded_memory(tmp_path: Path) -> None:
    """200 clients request the largest file four times and read nothing: each holds a part of it in memory."""
    with running_daemon(tmp_path) as daemon:
        before = rss_bytes(warm(daemon))
        with slow_readers(daemon, 200, LARGEST * 4):
            time.sleep(1)
            health = daemon.get("/healthz")
            grown = rss_bytes(daemon) - before

        time.sleep(0.5)

        assert health.status == 200
        within("RSS of 200 clients that never read", grown, 32 * MIB, "bytes")
        assert_quiet(daemon)


def warm(daemon: RunningDaemon) -> RunningDaemon:
    """Load the API and pages first."""
    assert daemon.get("/about").status == daemon.get("/api/v1/alerts").status == 200
    return daemon


@pytest.mark.measure
def test_clients_that_never_read_do_not_delay_shutdown(tmp_path: Path) -> None:
    """SIGTERM drops unread responses: exit code 0 without a traceback."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon, slow_readers(warm(daemon), 20, LARGEST * 4):
        time.sleep(1)
        watch = Stopwatch()

        assert daemon.terminate() == 0
        within("shutdown with unread answers", watch.seconds, 2.5, "s")
        assert complaints(daemon) == []


def test_stream_with_pipelined_requests_ends_with_its_client(tmp_path: Path) -> None:
    """A client that pipelines requests after a stream and leaves must not occupy a stream slot."""
    stream_request = b"GET /api/v1/stream HTTP/1.1\r\n" + PROXIED + HOST + b"\r\n"
    with running_daemon(tmp_path, "--interval", "100ms", config="[web]\nmax_streams = 4\n") as daemon:
        with connections(
            daemon, 3, stream_request + stream_request.replace(b"api/v1/stream", b"healthz")
        ) as listeners:
            assert [one.recv(100)[9:12] for one in listeners] == [b"200"] * 3

        def all_are_free() -> bool:
            with connections(daemon, 3, stream_request) as listeners:
                return [one.recv(100)[9:12] for one in listeners] == [b"200"] * 3

        wait_until(all_are_free)
        assert_quiet(daemon)


@pytest.mark.long
@pytest.mark.measure
@pytest.mark.parametrize(("max_streams", "most"), [(64, 48), (1334, 1000)])
def test_1000_streams_leave_room_for_scrapes(tmp_path: Path, max_streams: int, most: int) -> None:
    """Streams above the share of a client get 503 with Retry-After. Scrapes stay fast, memory and descriptors
    bounded."""
    stream_request = b"GET /api/v1/stream HTTP/1.1\r\n" + PROXIED + HOST + b"\r\n"
    with (
        room_for_descriptors(3000),
        running_daemon(tmp_path, config=f"[web]\nmax_streams = {max_streams}\n") as daemon,
    ):
        base = descriptors(warm(daemon).pid)
        with connections(daemon, 1000, stream_request) as members, Crowd(members) as crowd:
            waited = seconds_until(
                lambda: len(crowd.first) == 1000,
                daemon,
                lambda: f"{len(crowd.first)} answered, {len(crowd.closed_at)} closed",
            )
            assert waited < 10
            until = time.monotonic() + 2
            times = times_of(daemon, "/metrics", lambda: time.monotonic() > until)
            rss = rss_bytes(daemon)
        took = wait_until(lambda: descriptors(daemon.pid) <= base)

        answers = Counter(first[9:12] for first in crowd.first.values())
        rejected = [first.lower() for first in crowd.first.values() if first[9:12] == b"503"]
        assert answers == Counter({b"200": most, b"503": 1000 - most} if most < 1000 else {b"200": 1000})
        assert all(b"\r\nretry-after: 30\r\n" in first for first in rejected)
        assert percentile(times, 0.99) < 0.1
        assert rss < 128 * MIB
        assert took < 30
        assert_quiet(daemon)


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    """Raise the descriptor limit of this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
