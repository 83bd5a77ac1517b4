"""What is answered without the application: only what needs no thought, and never at a connection's expense."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Sequence

import pytest

from memwatchd.http_server.protocol import MOST_HEARD, AtOnce, BoundedProtocol, Limits
from support.raw_http import HOST, QUICK, WHOLE, Application, Client, Connect, served
from support.waiting import PATIENCE_SECONDS

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nat once"
POST = b"POST /whole HTTP/1.1\r\n" + HOST


def at_once(_fields: Sequence[tuple[bytes, bytes]], _peer: object) -> bytes:
    return ANSWER


def not_now(_fields: Sequence[tuple[bytes, bytes]], _peer: object) -> None:
    return None


def asking(request: bytes, answer: AtOnce = at_once) -> bytes:
    """All that comes within a second of one request."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.send(request)
        return await client.heard(1.0)

    found: bytes = served(Limits(), talk, {b"/whole": answer})
    return found


async def answered(connect: Connect) -> Client:
    """A connection that has been answered once, at once."""
    client = await connect()
    client.send(WHOLE)
    assert await client.bytes_of(len(ANSWER)) == ANSWER
    return client


def test_what_needs_no_thought_is_sent_as_it_is() -> None:
    """Alone, and with others of its kind in one piece."""

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
def test_all_else_is_the_applications(request_: bytes) -> None:
    """Another method, a query, a body, a connection that ends or changes: uvicorn knows what to do."""
    answer = asking(request_)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"at once" not in answer


def test_a_connection_that_is_to_be_closed_is() -> None:
    """The last request of a connection ends it, though the same request before it was answered at once."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        client.send(WHOLE + WHOLE.replace(HOST, HOST + b"Connection: close\r\n"))
        return await client.rest()

    rest = served(Limits(), talk, {b"/whole": at_once})

    assert rest.startswith(ANSWER)
    assert rest.count(b"HTTP/1.1 200 OK") == 2
    assert b"connection: close" in rest


def test_where_there_is_no_answer_at_once_the_application_has_one() -> None:
    """Before the first tick, and whoever has to show who he is."""
    assert b"\r\n6\r\n/whole\r\n0\r\n\r\n" in asking(WHOLE, not_now)


def test_answers_come_in_the_order_of_their_requests() -> None:
    """Behind an answer that takes a second, what could be answered at once waits for it."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await connect()
        slow = WHOLE.replace(b"/whole", b"/slow")
        client.send(WHOLE + slow + WHOLE + slow)
        client.send(WHOLE)
        return await client.heard(4.0)

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


def test_a_connection_that_asks_nothing_more_is_closed_in_its_time() -> None:
    """Not while it still asks, and by the same time after an answer of the application."""

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

    assert at_once_seconds > 0.5
    assert mixed_seconds > 0.5


def test_the_same_request_again_is_asked_about_again() -> None:
    """Its bytes are known and not parsed anew; the answer is of the moment, and may be the application's."""
    answers = [ANSWER, ANSWER, None, None, ANSWER]
    fields: list[object] = []

    def next_of_them(found: object, _peer: object) -> bytes | None:
        fields.append(list(found) if isinstance(found, tuple) else found)
        return answers.pop(0)

    async def talk(connect: Connect, _app: Application) -> list[bytes]:
        client = await connect()
        heard = []
        for answer in (ANSWER, ANSWER, None, ANSWER):
            client.send(WHOLE)
            heard.append(await (client.answer() if answer is None else client.bytes_of(len(answer))))
        return heard

    first, second, third, fourth = served(Limits(), talk, {b"/whole": next_of_them})

    assert (first, second, fourth) == (ANSWER, ANSWER, ANSWER)
    assert third.endswith(b"/whole\r\n0\r\n\r\n")
    assert fields == [[(b"host", b"localhost")]] * 5


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"POST /whole HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, len(WHOLE)), b"/whole"),
        (b"GET /large HTTP/1.1\r\n%bX: " % HOST, b"/large"),
    ],
    ids=["body", "field"],
)
def test_what_reads_like_a_known_request_is_none_within_another(head: bytes, answer: bytes) -> None:
    """A body, or the rest of a head, that is the same to the byte is no request: one answer, not two."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        client.send(head)
        await asyncio.sleep(0.2)
        client.send(WHOLE)
        return await client.heard(0.5)

    rest = served(Limits(), talk, {b"/whole": at_once})

    assert rest.count(b"HTTP/1.1 200 OK") == 1
    assert rest.endswith(b"\r\n6\r\n%b\r\n0\r\n\r\n" % answer)


def test_a_known_request_waits_behind_an_answer() -> None:
    """Though its bytes are known, a connection that still answers another comes to it afterwards."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        client.send(WHOLE.replace(b"/whole", b"/slow"))
        await asyncio.sleep(0.2)
        client.send(WHOLE)
        return await client.heard(2.0)

    rest = served(Limits(), talk, {b"/whole": at_once})

    assert 0 < rest.find(b"/slow") < rest.find(b"/whole")
    assert b"at once" not in rest


def test_requests_that_differ_are_not_all_kept() -> None:
    """Who invents a field for every request fills no memory: they are answered, and forgotten."""

    async def talk(connect: Connect, _app: Application) -> int:
        client = await connect()
        for number in range(300):
            client.send(WHOLE.replace(HOST, HOST + b"X: %d\r\n" % number))
            assert await client.bytes_of(len(ANSWER)) == ANSWER
        protocols = [one for one in gc.get_objects() if isinstance(one, BoundedProtocol)]
        return max(len(one._heard) for one in protocols)

    assert 0 < served(Limits(), talk, {b"/whole": at_once}) <= MOST_HEARD


def test_a_stream_outlives_what_was_answered_before_it() -> None:
    """The clock of an idle connection does not close one that listens."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        client.send(WHOLE.replace(b"/whole", b"/stream"))
        return await client.answer()

    assert served(QUICK, talk, {b"/whole": at_once}, keep_alive_seconds=0.3).count(b"tick") == 10


def test_a_request_that_has_begun_is_waited_for() -> None:
    """The clock of an idle connection does not close one whose next request is on its way."""

    async def talk(connect: Connect, _app: Application) -> bytes:
        client = await answered(connect)
        await asyncio.sleep(0.2)
        client.send(WHOLE[:10])
        await asyncio.sleep(0.6)
        client.send(WHOLE[10:])
        return await client.bytes_of(len(ANSWER))

    assert served(Limits(), talk, {b"/whole": at_once}, keep_alive_seconds=0.5) == ANSWER


def test_who_does_not_read_gets_no_pile_of_answers() -> None:
    """What the socket does not take waits once, not 64 times; then the connection is given up."""
    given = 0

    def large(_fields: object, _peer: object) -> bytes:
        nonlocal given
        given += 1
        return b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + bytes(1_000_000)

    async def talk(_connect: Connect, app: Application) -> int:
        received = 0
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(app.address)
            client.sendall(WHOLE * 64)
            await asyncio.sleep(1.0)
            client.settimeout(PATIENCE_SECONDS)
            with contextlib.suppress(ConnectionError):
                while part := client.recv(4096):
                    received += len(part)
                    await asyncio.sleep(0)
        return received

    received = served(QUICK, talk, {b"/whole": large})

    assert given == 1
    assert 0 < received < 1_000_000
