"""A slow event stream does not block the event loop."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, cast

import pytest

from memwatch.core.budget import EVENT_STREAMS, ROOT, Account, Budget
from memwatch.core.snapshot import Snapshot
from memwatch_web.asgi.broker import Broker, Stream
from memwatch_web.asgi.sse import EventStream, Identity


async def find_account(scope: Any) -> Account:
    return Account(scope.get("memwatch.cli", ""))


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
        stream = EventStream(broker, Identity(chunk_of), find_account)
        await asyncio.gather(stream({"type": "http"}, receive, send), another())

    broker = Broker(lambda: cast("Snapshot", next(numbers)), budget(10))
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
    broker = Broker(lambda: cast("Snapshot", next(numbers)), budget(10))
    for _ in range(2):
        asyncio.run(EventStream(broker, Identity(chunk_of), find_account)({"type": "http"}, receive, send))

    assert caplog.messages == ["a live stream ended: LookupError: no such template"]
    assert [message.get("more_body") for message in sent] == [None, False] * 2
    assert broker.streams == 0


def budget(most: int) -> Budget:
    return Budget(EVENT_STREAMS, most)


def opened(broker: Broker, *clients: str) -> list[Stream | None]:
    return [broker.join(client, Account(client)) for client in clients]


def test_account_with_the_most_streams_gives_one_to_another() -> None:
    """Its oldest ends. With one stream less than the most there is none, or two would take turns for ever."""
    broker = Broker(lambda: None, budget(7))
    streams = opened(broker, "a", "a", "a", "b", "b")

    assert opened(broker, "a", "b") == [None, None]
    (own,) = opened(broker, "c")

    assert [one is not None and one.ended for one in streams] == [True, False, False, False, False]
    assert (broker.streams, broker.count("a"), broker.count("c")) == (5, 2, 1)
    assert opened(broker, "a", "b", "c") == [None] * 3
    for one in (streams[0], own):
        assert one is not None
        broker.leave(one)
    assert (broker.streams, broker.count("c")) == (4, 0)


def test_account_may_have_three_quarters_of_all_streams() -> None:
    broker = Broker(lambda: None, budget(64))

    assert None not in opened(broker, *["a"] * 48)
    assert opened(broker, "a") == [None]
    assert broker.budget.describe(Account("a")) == "a has 48 of 64 open pages and other event streams, its share"
    assert None not in opened(broker, "b")


def test_streams_of_users_leave_a_quarter_to_operators_and_none_is_refused_to_root() -> None:
    broker = Broker(lambda: None, budget(8))
    opened(broker, *"abcdef")

    assert opened(broker, "g") == [None]
    assert broker.join("loopback", Account("uid 1000").as_operator())
    assert all(broker.join("loopback", ROOT) for _ in range(20))
    assert broker.streams == 27


def test_refused_stream_is_a_problem_with_a_pause() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    broker = Broker(lambda: None, budget(4))
    opened(broker, "a", "a", "a")
    scope = {"type": "http", "memwatch.cli": "a"}
    asyncio.run(EventStream(broker, Identity(lambda _: b""), find_account)(scope, receive, send))

    assert sent[0]["status"] == 503
    assert (b"retry-after", b"30") in sent[0]["headers"]
    assert b"a has 3 of 4 open pages and other event streams, its share: close some" in sent[1]["body"]
