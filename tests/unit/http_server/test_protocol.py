"""Test the server's bounds on time and size, and that slow or excessive requests are rejected."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvicorn

from memwatchd.http_server.limits import Limits
from memwatchd.http_server.server import TESTED_UVICORN
from support.paths import ROOT
from support.raw_http import (
    HOST,
    QUICK,
    WHOLE,
    Application,
    Closed,
    Connect,
    Talk,
    served,
    until_closed,
    until_running,
    whole_at_once,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Serve = Callable[[Limits, Talk], Any]


@pytest.fixture(params=["by the application", "at once"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """Server that answers /whole through the application or by a direct answer; clients see no difference."""
    return partial(served, at_once={b"/whole": whole_at_once} if request.param == "at once" else {})


POST = b"POST /whole HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n"
DRIPS = ["one byte", "head", "empty lines", "no body", "body"]


@pytest.mark.parametrize("had_request", [False, True])
@pytest.mark.parametrize("text", [b"G", WHOLE, b"\r\n" * 20, POST, POST + b"x" * 99], ids=DRIPS)
def test_slow_request_times_out(serve: Serve, text: bytes, had_request: bool) -> None:
    """The deadline runs from the connection, or from the first byte of a later request, to its last byte."""

    async def talk(connect: Connect, _app: Application) -> float:
        client = await connect()
        if had_request:
            client.send(WHOLE)
            await client.answer()
            await asyncio.sleep(1.0)
        closed = asyncio.ensure_future(until_closed(client))
        at = len(POST) if text.startswith(POST) else 1
        client.send(text[:at])
        while at < len(text) and not closed.done():
            await asyncio.sleep(0.05)
            client.send(text[at : at + 1])
            at += 1
        return (await closed).seconds

    assert serve(QUICK, talk) == pytest.approx(0.3)


def test_partial_request_behind_a_whole_one_times_out(serve: Serve) -> None:
    """One request and half of the next in one segment: one answer, then the deadline of the second."""

    async def talk(connect: Connect, _app: Application) -> Closed:
        client = await connect()
        client.send(WHOLE)
        await client.answer()
        client.send(WHOLE + WHOLE[:20])
        await client.answer()
        return await until_closed(client)

    closed = serve(QUICK, talk)

    assert closed.seconds == pytest.approx(0.3)


def test_later_request_has_its_own_deadline(serve: Serve) -> None:
    """After an answer, the first byte of the next request starts the deadline; half a request gets a 408."""

    async def talk(connect: Connect, _app: Application) -> Closed:
        client = await connect()
        client.send(WHOLE)
        await client.answer()
        await asyncio.sleep(0.6)
        return await until_closed(client, WHOLE[:10])

    closed = serve(QUICK, talk)

    assert closed.seconds == pytest.approx(0.3)
    assert closed.rest.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"application/problem+json" in closed.rest
    assert b"the request was not complete after 0.3 s." in closed.rest


def test_scraper_may_idle_between_requests(serve: Serve) -> None:
    """Between requests only the keep-alive timeout of 75 s applies."""

    async def talk(connect: Connect, _app: Application) -> list[bytes]:
        client = await connect()
        answers = []
        for _ in range(3):
            client.send(WHOLE)
            answers.append(await client.answer())
            await asyncio.sleep(0.5)
        return answers

    assert all(answer.startswith(b"HTTP/1.1 200") for answer in serve(QUICK, talk))


def test_slow_answers_and_streams_outlive_the_deadline(serve: Serve) -> None:
    """The deadline ends with the last byte of the request, for any length of answer and any split of a request."""

    async def talk(connect: Connect, _app: Application) -> list[bytes]:
        async def ask(path: bytes, at: int) -> bytes:
            client, request = await connect(), WHOLE.replace(b"/whole", path)
            client.send(request[:at])
            await asyncio.sleep(0.1)
            client.send(request[at:])
            return await client.answer()

        asks = (ask(b"/slow", 0), ask(b"/slow", 20), ask(b"/stream", 0), ask(b"/stream", 9))
        return list(await asyncio.gather(*asks))

    answers = serve(QUICK, talk)

    assert all(b"HTTP/1.1 200 OK" in answer for answer in answers)
    assert [answer.count(b"tick") for answer in answers] == [0, 0, 10, 10]


def test_unread_answer_times_out(serve: Serve) -> None:
    """A client that never reads holds its connection, and the work for it, until the deadline at most."""

    async def talk(connect: Connect, app: Application) -> float:
        client = await connect()
        client.stop_reading()
        client.send(WHOLE.replace(b"/whole", b"/flood"))
        await until_running(app, 1)
        return await until_running(app, 0)

    assert serve(QUICK, talk) == pytest.approx(0.3, abs=0.011)


def test_small_unread_answer_times_out(serve: Serve) -> None:
    """Bytes that the socket does not accept count from the first one, so no connection lingers while closing."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.stop_reading()
        client.send(WHOLE.replace(b"/whole", b"/large").replace(HOST, HOST + b"Connection: close\r\n"))
        await asyncio.sleep(0.31)
        client.resume_reading()
        return await client.rest()

    assert 0 < len(serve(QUICK, talk)) < 60_000


def test_rejection_follows_the_answers_before_it(serve: Serve) -> None:
    """Two requests and garbage in one segment get two answers and a rejection, in this order."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.send(WHOLE.replace(b"/whole", b"/slow") + WHOLE + b"\x16\x03\x01 garbage")
        return await client.rest()

    rest = serve(Limits(), talk)

    places = [rest.index(part) for part in (b"/slow", b"/whole", b"HTTP/1.1 400 Bad Request")]
    assert places == sorted(places)
    assert rest.count(b"HTTP/1.1 200 OK") == 2


def test_pipelined_requests_are_bounded() -> None:
    """65 of 150 pipelined requests are answered one by one, then a 429 ends the connection."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.send(WHOLE * 150)
        return await client.rest()

    rest = served(Limits(), talk, {})

    assert rest.count(b"HTTP/1.1 200 OK") == 65
    assert rest.count(b"HTTP/1.1 429 Too Many Requests") == 1
    assert b"64 requests are already queued: read their responses first." in rest


def test_input_after_a_rejection_is_discarded(serve: Serve) -> None:
    """The rejection arrives complete, and once, although the client keeps sending."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        reading = asyncio.ensure_future(client.rest())
        for _ in range(20):
            client.send(b"garbage" * 10_000)
            await asyncio.sleep(0.01)
        return await reading

    rest = serve(Limits(receive_seconds=0.3), talk)

    assert rest.count(b"HTTP/1.1 400 Bad Request\r\n") == 1
    assert rest.endswith(b"}")


def test_size_limits_apply_to_each_request(serve: Serve) -> None:
    """Eighteen requests of one kilobyte on one connection, each in two pieces, are all answered."""

    async def talk(connect: Connect, _app: Application) -> list[bytes]:
        client = await connect()
        answers = []
        for _ in range(18):
            client.send(b"GET /whole HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 1000)
            await asyncio.sleep(0.01)
            client.send(b"\r\n\r\n")
            answers.append(await client.answer())
        return answers

    assert all(answer.startswith(b"HTTP/1.1 200") for answer in serve(Limits(), talk))


def statuses(serve: Serve, limits: Limits, *requests: bytes) -> list[int]:
    async def talk(connect: Connect, _app: Application) -> list[int]:
        clients = [await connect() for _ in requests]
        for client, request in zip(clients, requests, strict=True):
            client.send(request)
        return [int((await client.rest())[9:12]) for client in clients]

    found: list[int] = serve(limits, talk)
    return found


def test_size_limits_are_exact(serve: Serve) -> None:
    """The last allowed byte of a target or body and the last allowed field are accepted, one more is rejected."""
    limits = Limits(url_bytes=100, head_bytes=1000, fields=10, body_bytes=10)
    end = b" HTTP/1.1\r\nConnection: close\r\n" + HOST

    targets = [b"GET /whole?" + b"a" * count + end + b"\r\n" for count in (93, 94)]
    fields = [b"GET /whole" + end + b"X: y\r\n" * count + b"\r\n" for count in (8, 9)]
    long_fields = [b"GET /whole" + end + b"X: " + b"y" * count + b"\r\n\r\n" for count in (900, 1000)]
    bodies = [b"GET /whole" + end + b"Content-Length: %d\r\n\r\n" % size + b"x" * size for size in (10, 11)]

    assert statuses(serve, limits, *targets, *fields) == [200, 414, 200, 431]
    assert statuses(serve, limits, *long_fields, *bodies) == [200, 431, 200, 413]


def test_bodies_of_any_length_and_other_protocols_are_rejected(serve: Serve) -> None:
    start = b"POST /whole HTTP/1.1\r\n" + HOST
    chunked, large = b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 1000000000\r\n\r\n"
    fields = b"X: y\r\n" * 200 + b"\r\n"

    found = statuses(serve, Limits(), start + chunked, start + large, start + fields, b"\x16\x03\x01 x\r\n\r\n")

    assert found == [411, 413, 431, 400]


def test_pinned_uvicorn_is_the_tested_one() -> None:
    """A release outside the pin may lack a limit. The other tests of this folder run with one inside it."""
    major, minor = map(int, TESTED_UVICORN.split("."))
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]["custom"]

    assert f"uvicorn>={TESTED_UVICORN},<{major}.{minor + 1}" in hook["dependencies"]
    assert uvicorn.__version__.startswith(f"{TESTED_UVICORN}.")


def test_endless_head_is_rejected(serve: Serve) -> None:
    """Neither one endless field, nor endless fields, nor an endless target is buffered."""
    start = b"GET /whole HTTP/1.1\r\n" + HOST

    found = statuses(
        serve, Limits(), start + b"X: " + b"y" * 20_000, start + b"X: y\r\n" * 150, b"GET /" + b"y" * 20_000
    )

    assert found == [431, 431, 414]


def test_many_requests_in_one_segment_are_not_one_head(serve: Serve) -> None:
    """Thirty requests of one kilobyte each are answered: limits apply to a request, not to a segment."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        request = b"GET /whole HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 1000 + b"\r\n"
        client.send((request + b"\r\n") * 29 + request + b"Connection: close\r\n\r\n")
        return await client.rest()

    assert serve(Limits(), talk).count(b"HTTP/1.1 200 OK") == 30


def test_oldest_connection_without_a_request_is_closed(serve: Serve) -> None:
    """Many silent connections exclude no client, and connections with a request stay open."""

    async def talk(connect: Connect, _app: Application) -> tuple[list[bytes], bytes]:
        listener = await connect()
        listener.send(WHOLE.replace(b"/whole", b"/slow"))
        await asyncio.sleep(0.05)
        silent = [await connect() for _ in range(8)]
        pushed_out = [await one.rest(1.0) for one in silent[:1]]
        late = await connect()
        late.send(WHOLE)
        return [*pushed_out, await late.answer()], await listener.answer()

    (pushed_out, late), slow = serve(Limits(connections=16), talk)

    assert pushed_out == b""
    assert late.startswith(b"HTTP/1.1 200 OK")
    assert b"/slow" in slow
