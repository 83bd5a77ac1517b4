"""Test answers sent without the application: only for plain requests, and never at a connection's expense."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from memwatchd.http_server.limits import Limits
from memwatchd.http_server.protocol import AtOnce
from support.raw_http import HOST, QUICK, WHOLE, Application, Client, Connect, served

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nat once"
POST = b"POST /whole HTTP/1.1\r\n" + HOST


def at_once(_fields: Sequence[tuple[bytes, bytes]], _peer: object) -> bytes:
    return ANSWER


def not_now(_fields: Sequence[tuple[bytes, bytes]], _peer: object) -> None:
    return None


def asking(request: bytes, answer: AtOnce = at_once) -> bytes:
    """Return all bytes received within one second of one request."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.send(request)
        return await client.receive_for(1.0)

    found: bytes = served(Limits(), talk, {b"/whole": answer})
    return found


async def answered(connect: Connect) -> Client:
    """Return a connection that has had one direct answer."""
    client = await connect()
    client.send(WHOLE)
    assert await client.bytes_of(len(ANSWER)) == ANSWER
    return client


def test_plain_request_is_answered_directly() -> None:
    """Alone, and several in one segment."""

    async def talk(connect: Connect, _app: Application) -> tuple[bytes, bytes]:
        client = await connect()
        client.send(WHOLE)
        alone = await client.bytes_of(len(ANSWER))
        client.send(WHOLE * 3)
        return alone, await client.bytes_of(3 * len(ANSWER))

    assert served(Limits(), talk, {b"/whole": at_once}) == (ANSWER, 3 * ANSWER)


@pytest.mark.parametrize(
    "request_",
    [
        WHOLE.replace(b"GET", b"HEAD"),
        POST + b"\r\n",
        WHOLE.replace(b"/whole", b"/whole?x=1"),
        WHOLE.replace(HOST, HOST + b"Content-Length: 2\r\n") + b"{}",
        WHOLE.replace(HOST, HOST + b"Expect: 100-continue\r\n"),
        WHOLE.replace(HOST, HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
        WHOLE.replace(HOST, HOST + b"Connection: close\r\n"),
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0").replace(HOST, HOST + b"Connection: keep-alive\r\n"),
    ],
    ids=["HEAD", "POST", "query", "body", "expect", "upgrade", "close", "1.0", "1.0, kept"],
)
def test_other_requests_are_answered_by_the_application(request_: bytes) -> None:
    """Another method, a query, a body, or a connection that ends or changes is left to uvicorn."""
    answer = asking(request_)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"at once" not in answer


def test_connection_close_is_honored() -> None:
    """The last request of a connection ends it, even after a direct answer to the same request."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.send(WHOLE + WHOLE.replace(HOST, HOST + b"Connection: close\r\n"))
        return await client.rest()

    rest = served(Limits(), talk, {b"/whole": at_once})

    assert rest.startswith(ANSWER)
    assert rest.count(b"HTTP/1.1 200 OK") == 2
    assert b"connection: close" in rest


def test_request_without_a_direct_answer_goes_to_the_application() -> None:
    """Before the first tick, and for clients that must log in."""
    assert b"\r\n6\r\n/whole\r\n0\r\n\r\n" in asking(WHOLE, not_now)


def test_answers_keep_the_order_of_requests() -> None:
    """A request with a direct answer waits for a slow answer before it."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        slow = WHOLE.replace(b"/whole", b"/slow")
        client.send(WHOLE + slow + WHOLE + slow)
        client.send(WHOLE)
        return await client.receive_for(4.0)

    rest = served(Limits(), talk, {b"/whole": at_once})

    assert [
        part for part in (rest[i : i + 5] for i in range(len(rest))) if part in (b"/slow", b"/whol", b"at on")
    ] == [
        b"at on",
        b"/slow",
        b"/whol",
        b"/slow",
        b"/whol",
    ]


def test_idle_connection_is_closed_after_the_keep_alive_timeout() -> None:
    """Not between requests, and after the same time if the application gave the last answer."""

    async def talk(connect: Connect, _app: Application) -> tuple[float, float]:
        async def idle(request: bytes, length: int) -> float:
            client = await connect()
            for _ in range(4):
                client.send(request)
                assert len(await client.bytes_of(length)) == length
                await asyncio.sleep(0.3)
            began = asyncio.get_running_loop().time()
            await client.rest()
            return asyncio.get_running_loop().time() - began

        other = WHOLE.replace(b"/whole", b"/large")
        return await idle(WHOLE, len(ANSWER)), await idle(other + WHOLE, 60_000)

    at_once_seconds, mixed_seconds = served(Limits(), talk, {b"/whole": at_once}, keep_alive_seconds=1.0)

    assert at_once_seconds == pytest.approx(0.7)
    assert mixed_seconds == pytest.approx(0.7)


def test_repeated_request_gets_a_new_answer() -> None:
    """It may come from the application."""
    answers = [ANSWER, ANSWER, None, ANSWER]
    fields: list[object] = []

    def next_of_them(found: object, _peer: object) -> bytes | None:
        fields.append(list(found) if isinstance(found, tuple) else found)
        return answers.pop(0)

    async def talk(connect: Connect, _app: Application) -> list[bytes]:
        client = await connect()
        received = []
        for answer in (ANSWER, ANSWER, None, ANSWER):
            client.send(WHOLE)
            received.append(await (client.answer() if answer is None else client.bytes_of(len(answer))))
        return received

    first, second, third, fourth = served(Limits(), talk, {b"/whole": next_of_them})

    assert (first, second, fourth) == (ANSWER, ANSWER, ANSWER)
    assert third.endswith(b"/whole\r\n0\r\n\r\n")
    assert fields == [[(b"host", b"localhost")]] * 4


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"POST /whole HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, len(WHOLE)), b"/whole"),
        (b"GET /large HTTP/1.1\r\n%bX: " % HOST, b"/large"),
    ],
    ids=["body", "field"],
)
def test_bytes_of_a_request_inside_another_are_no_request(head: bytes, answer: bytes) -> None:
    """A body, or the rest of a head, equal to an earlier request gets one answer, not two."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        client.send(head)
        await asyncio.sleep(0.2)
        client.send(WHOLE)
        return await client.receive_for(0.5)

    rest = served(Limits(), talk, {b"/whole": at_once})

    assert rest.count(b"HTTP/1.1 200 OK") == 1
    assert rest.endswith(b"\r\n6\r\n%b\r\n0\r\n\r\n" % answer)


def test_repeated_request_waits_behind_an_answer() -> None:
    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        client.send(WHOLE.replace(b"/whole", b"/slow"))
        await asyncio.sleep(0.2)
        client.send(WHOLE)
        return await client.receive_for(2.0)

    rest = served(Limits(), talk, {b"/whole": at_once})

    assert 0 < rest.find(b"/slow") < rest.find(b"/whole")
    assert b"at once" not in rest


def test_stream_outlives_the_keep_alive_timeout() -> None:
    """The timeout of an idle connection does not close a stream."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        client.send(WHOLE.replace(b"/whole", b"/stream"))
        return await client.answer()

    assert served(QUICK, talk, {b"/whole": at_once}, keep_alive_seconds=0.3).count(b"tick") == 10


def test_partial_request_outlives_the_keep_alive_timeout() -> None:
    """The timeout of an idle connection does not close one whose next request has begun."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        await asyncio.sleep(0.2)
        client.send(WHOLE[:10])
        await asyncio.sleep(0.6)
        client.send(WHOLE[10:])
        return await client.bytes_of(len(ANSWER))

    assert served(Limits(), talk, {b"/whole": at_once}, keep_alive_seconds=0.5) == ANSWER


def test_client_that_does_not_read_queues_one_answer() -> None:
    """An answer that the socket does not accept is queued once, not 64 times; then the connection is closed."""
    given = 0

    def large(_fields: object, _peer: object) -> bytes:
        nonlocal given
        given += 1
        return b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + bytes(1_000_000)

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.stop_reading()
        client.send(WHOLE * 64)
        await asyncio.sleep(0.31)
        client.resume_reading()
        return await client.rest()

    received = served(QUICK, talk, {b"/whole": large})

    assert given == 1
    assert 0 < len(received) < 1_000_000
