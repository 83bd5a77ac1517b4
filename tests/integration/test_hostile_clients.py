"""Hostile and broken clients get a sentence or the door, and cost nobody else anything."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.daemon_process import RunningDaemon, descriptors, get, kept_files, running_daemon
from support.hostile_requests import HOST, HOSTILE, request
from support.http_exchange import assert_quiet, complaints, exchange
from support.many_clients import LARGEST, Crowd, connections, slow_readers
from support.waiting import MAX_WAIT_SECONDS, Stopwatch, wait_until

MIB = 1 << 20
PAGE = resource.getpagesize()
# A lowered limit is respected at the next look at the processes.
OFTEN = '[processes]\ninterval = "1s"\n'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for all the requests of this module; its log holds nothing about any of them."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--interval", "100ms") as running:
        yield running
        assert_quiet(running)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_gets_its_answer_at_once(daemon: RunningDaemon, name: str) -> None:
    """The right status within 200 ms, a problem where it is an error, no leave for other origins, then the door."""
    sent, allowed = HOSTILE[name]

    tries = [exchange(daemon.port, sent) for _ in range(3)]

    for answer in tries:
        assert answer.status in allowed, answer.received[:500]
        assert b"access-control-" not in answer.head
        if answer.status >= 400:
            assert b"content-type: application/problem+json" in answer.head
            assert json.loads(answer.body)["status"] == answer.status
    assert min(answer.seconds for answer in tries) < 0.2
    assert daemon.get("/healthz").status == 200


# This daemon keeps nothing over restarts, and no process has that number.
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


def test_head_is_get_without_the_body_everywhere(daemon: RunningDaemon) -> None:
    """Same status, same fields, no byte of a body, and the connection goes on; a stream does not begin."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    for path in documented_paths(daemon):
        if "{" in path:
            continue  # names one process of many, and is answered once a second
        connection.request("HEAD", path)
        head = connection.getresponse()
        body = head.read()

        # /api/v1/fit without a question is told what to ask.
        expected = 404 if path.endswith(NOTHING_HERE) else 422 if path.endswith("/fit") else 200
        assert (head.status, body) == (expected, b""), path
        assert head.getheader("access-control-allow-origin") is None
        if not path.endswith(("/stream", "/live")):
            whole = daemon.get(path)
            assert {name.lower() for name, _ in head.getheaders()} == set(whole.headers), path
            assert head.getheader("content-type") == whole.headers["content-type"]
    connection.close()


# Of pages, which the description of the API does not have.
FORMS = (("POST", "/alerts"),)


def has_post(path: str, described: dict[str, Any]) -> bool:
    return "post" in described.get(path, {}) or ("POST", path) in FORMS


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "POST", "PUT", "DELETE", "PATCH", "PROPFIND"])
def test_other_methods_are_refused_everywhere(daemon: RunningDaemon, method: str) -> None:
    """405 as a problem that says what is possible; nothing sent is echoed, not even by TRACE."""
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


def test_no_get_changes_anything(daemon: RunningDaemon) -> None:
    """After every path was asked for, with parameters that ask for deeds, nothing has happened."""
    before = daemon.get("/api/v1/events?limit=1000").json
    for path in documented_paths(daemon):
        for query in ("", "?reload=1&action=delete&_method=POST", "?limit=1&points=1&page=about&events=event"):
            exchange(daemon.port, request(path.encode() + query.encode(), method=b"HEAD"))
            if not path.endswith(("/stream", "/live")):
                assert daemon.get(path + query, X_HTTP_Method_Override="DELETE").status in {200, 404, 422}

    after = daemon.get("/api/v1/events?limit=1000").json
    assert {event["seq"] for event in before} <= {event["seq"] for event in after}
    new = {event["kind"] for event in after} - {event["kind"] for event in before}
    assert new <= {"late", "level", "oom_kill"}  # what may happen to this machine meanwhile


def test_a_body_is_refused_before_it_is_sent_and_never_kept(daemon: RunningDaemon) -> None:
    """Ten clients push 20 MB each: each gets its 413 intact, and the daemon grows by none of it."""
    head = request(fields=HOST + b"Content-Length: 20000000\r\n", method=b"POST")
    before = rss_bytes(daemon)

    answers = [exchange(daemon.port, head + bytes(20_000_000)) for _ in range(10)]

    assert [answer.status for answer in answers] == [413] * 10
    assert all(b"at most 65536 are read" in answer.body for answer in answers)
    assert rss_bytes(daemon) - before < 4 * MIB


def test_a_client_that_waits_for_leave_to_send_is_told_at_once(daemon: RunningDaemon) -> None:
    """Expect: 100-continue gets the refusal, not the leave."""
    expecting = HOST + b"Content-Length: 20000000\r\nExpect: 100-continue\r\n"
    answer = exchange(daemon.port, request(fields=expecting, method=b"POST"))

    assert answer.status == 413


def test_pipelined_requests_are_answered_in_order(daemon: RunningDaemon) -> None:
    """Twenty different requests in one piece, twenty answers, each to its own."""
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
def test_random_bytes_are_refused_or_waited_for(daemon: RunningDaemon, sent: bytes) -> None:
    """Whatever comes: nothing, or answers that are no 5xx; and the next client is served."""
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


def seconds_until(true: Callable[[], bool], daemon: RunningDaemon) -> float:
    """How long it takes, on a machine that is there, until it is so."""
    watch = Stopwatch(daemon.pid)
    wait_until(true)
    return watch.seconds


def times_of(daemon: RunningDaemon, path: str, until: Callable[[], bool]) -> list[float]:
    """How long each of many requests took, in order of size, on cores of one's own; all were answered with 200."""
    times = []
    while not until():
        watch = Stopwatch(daemon.pid)
        assert daemon.get(path).status == 200
        times.append(watch.seconds)
        time.sleep(0.01)
    return sorted(times)


def percentile(times: list[float], part: float) -> float:
    return times[min(len(times) - 1, int(len(times) * part))]


@pytest.mark.alone
def test_slow_senders_are_gone_after_ten_seconds_and_disturb_nobody(tmp_path: Path) -> None:
    """200 silent, half-sent and dripping connections end by themselves; health, a stream and a scraper go on."""
    half = b"GET /metrics HTTP/1.1\r\nHost: local"
    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(tmp_path))
        base = descriptors(daemon.pid)
        scraper = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
        scraper.request("GET", "/metrics")
        scraper.getresponse().read()
        (stream,) = stack.enter_context(connections(daemon, 1, b"GET /api/v1/stream HTTP/1.1\r\n" + HOST + b"\r\n"))
        began, watch = time.monotonic(), Stopwatch(daemon.pid)
        silent = stack.enter_context(connections(daemon, 70))
        halved = stack.enter_context(connections(daemon, 70, half))
        dripping = stack.enter_context(connections(daemon, 60, half))
        crowd = stack.enter_context(Crowd([*silent, *halved, *dripping]))

        def all_closed() -> bool:
            for one in dripping:
                if one not in crowd.closed_at and time.monotonic() % 1 < 0.1:
                    drip(one)
            return len(crowd.closed_at) == 200 or time.monotonic() - began > 60

        times = times_of(daemon, "/healthz", all_closed)
        lost = time.monotonic() - began - watch.seconds
        stream.recv(1 << 20)
        ticks = [stream.recv(1 << 20) for _ in range(2)]
        scraper.request("GET", "/metrics")

        assert len(crowd.closed_at) == 200
        assert min(crowd.closed_at.values()) - began > 5
        assert max(crowd.closed_at.values()) - began <= 10 + lost
        assert percentile(times, 0.98) < 0.1
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


@pytest.mark.alone
def test_a_flood_beyond_the_descriptors_keeps_nobody_out(tmp_path: Path) -> None:
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


def test_without_a_free_descriptor_it_waits_and_recovers(tmp_path: Path) -> None:
    """Out of descriptors is one line in the log, no traceback, and over as soon as some are free."""
    with running_daemon(tmp_path, config=OFTEN) as daemon:
        base = descriptors(daemon.pid)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (base + 3, base + 3))
        assert seconds_until(lambda: kept_files(daemon.pid) == 0, daemon) < 5
        few = descriptors(daemon.pid) + 3
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (few, few))

        with connections(daemon, 40, b"GET /api/v1/stream HTTP/1.1\r\n" + HOST + b"\r\n"):
            time.sleep(2.5)
        assert seconds_until(lambda: daemon.get("/healthz").status == 200, daemon) < 10

        log = daemon.log.read_text()
        assert log.count("out of system resource") == 1
        assert "Traceback" not in log


@pytest.mark.alone
def test_clients_that_never_read_do_not_make_it_grow(tmp_path: Path) -> None:
    """200 clients ask for the largest file four times and take nothing: each holds a piece of it, not the file."""
    with running_daemon(tmp_path) as daemon:
        before = rss_bytes(daemon)
        with slow_readers(daemon, 200, LARGEST * 4):
            time.sleep(1)
            health = daemon.get("/healthz")
            grown = rss_bytes(daemon) - before

        time.sleep(0.5)

        assert health.status == 200
        assert grown < 48 * MIB
        assert_quiet(daemon)


def warm(daemon: RunningDaemon) -> RunningDaemon:
    """With its pages and its API made."""
    assert daemon.get("/about").status == 200
    return daemon


@pytest.mark.alone
def test_clients_that_never_read_do_not_delay_the_end(tmp_path: Path) -> None:
    """SIGTERM lets go of answers nobody takes: out at once, with code 0 and no traceback."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon, slow_readers(warm(daemon), 20, LARGEST * 4):
        time.sleep(1)
        watch = Stopwatch()

        assert daemon.terminate() == 0
        assert watch.seconds < 2.5
        assert complaints(daemon) == []


def test_a_stream_with_requests_behind_it_ends_with_its_client(tmp_path: Path) -> None:
    """A client that asks for a stream, asks on and leaves takes no stream from the others for ever."""
    asked = b"GET /api/v1/stream HTTP/1.1\r\n" + HOST + b"\r\n"
    with running_daemon(tmp_path, "--interval", "100ms", config="[web]\nmax_streams = 3\n") as daemon:
        with connections(daemon, 3, asked + asked.replace(b"api/v1/stream", b"healthz")) as listeners:
            assert [one.recv(100)[9:12] for one in listeners] == [b"200"] * 3

        def all_are_free() -> bool:
            with connections(daemon, 3, asked) as listeners:
                return [one.recv(100)[9:12] for one in listeners] == [b"200"] * 3

        assert seconds_until(all_are_free, daemon) < 5
        assert_quiet(daemon)


@pytest.mark.alone
@pytest.mark.parametrize("most", [64, 1000])
def test_a_thousand_listeners_leave_room_for_scrapes(tmp_path: Path, most: int) -> None:
    """Those beyond max_streams are told when to come back; scrapes stay quick, memory and descriptors bounded."""
    asked = b"GET /api/v1/stream HTTP/1.1\r\n" + HOST + b"\r\n"
    with room_for_descriptors(3000), running_daemon(tmp_path, config=f"[web]\nmax_streams = {most}\n") as daemon:
        base = descriptors(daemon.pid)
        with connections(daemon, 1000, asked) as members, Crowd(members) as crowd:
            assert seconds_until(lambda: len(crowd.first) == 1000, daemon) < 10
            until = time.monotonic() + 3
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
    """This process, and what it starts, may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
