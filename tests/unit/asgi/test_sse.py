"""A slow event stream does not block the event loop."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, cast

import pytest

from memwatch.core.snapshot import Snapshot
from memwatch_web.asgi.broker import Broker, Stream
from memwatch_web.asgi.sse import EventStream, Identity


def test_stream_as_slow_as_sampling_yields_to_other_tasks() -> None:
    """A newer snapshot is always there. Other tasks still get every second turn of the loop."""
    numbers = count()
    rendered: list[int] = []
    turns_of_another = 0

    def chunk_of(number: Snapshot) -> bytes:
        rendered.append(cast("int", number))
        if len(rendered) == 50:
            broker.close()
        return b"data: x\n\n"

    async def send(_: Any) -> None:
        """Return at once, as a server does while the socket is writable."""

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def another() -> None:
        nonlocal turns_of_another
        while not broker.closed:
            turns_of_another += 1
            await asyncio.sleep(0)

    async def both() -> None:
        stream = EventStream(broker, Identity(chunk_of))
        await asyncio.gather(stream({"type": "http"}, receive, send), another())

    broker = Broker(lambda: cast("Snapshot", next(numbers)), 10)
    asyncio.run(both())

    assert len(rendered) == 50
    assert rendered == sorted(set(rendered))
    assert turns_of_another >= 49
    assert broker.streams == 0


def test_stream_that_cannot_be_rendered_ends_with_its_reason_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    def chunk_of(_number: Snapshot) -> bytes:
        raise LookupError("no such template")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    numbers = count()
    broker = Broker(lambda: cast("Snapshot", next(numbers)), 10)
    for _ in range(2):
        asyncio.run(EventStream(broker, Identity(chunk_of))({"type": "http"}, receive, send))

    assert caplog.messages == ["a live stream ended: LookupError: no such template"]
    assert [message.get("more_body") for message in sent] == [None, False] * 2
    assert broker.streams == 0


def opened(broker: Broker, *clients: str) -> list[Stream]:
    return [broker.join(client) for client in clients]


def test_client_with_the_most_streams_gives_one_to_another_client() -> None:
    """Its oldest ends. A client with one stream less than the most gets none, or two would take turns for ever."""
    broker = Broker(lambda: None, 5)
    streams = opened(broker, "a", "a", "a", "b", "b")

    assert not broker.has_room("a")
    assert not broker.has_room("b")
    assert broker.has_room("c")
    (own,) = opened(broker, "c")

    assert [one.ended for one in streams] == [True, False, False, False, False]
    assert (broker.streams, broker.count("a"), broker.count("c")) == (5, 2, 1)
    assert not any(broker.has_room(client) for client in "abc")
    broker.leave(streams[0])
    broker.leave(own)
    assert (broker.streams, broker.count("c")) == (4, 0)


def test_client_may_have_three_quarters_of_all_streams() -> None:
    broker = Broker(lambda: None, 64)
    opened(broker, *["a"] * 48)

    assert not broker.has_room("a")
    assert broker.has_room("b")


def test_every_client_gets_a_stream_while_one_has_two() -> None:
    """As many clients as streams have one each. One more gets none: no client has two."""
    broker = Broker(lambda: None, 8)
    opened(broker, *["a"] * 6)
    for client in "bcdefgh":
        assert broker.has_room(client)
        opened(broker, client)

    assert [broker.count(client) for client in "abcdefgh"] == [1] * 8
    assert not broker.has_room("i")
