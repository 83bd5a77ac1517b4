"""A stream that cannot keep up lets others have their turn."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, cast

from memwatch.snapshot import Snapshot
from memwatch_web.asgi.sse import Broker, EventStream


def test_who_takes_as_long_as_a_tick_lets_others_in() -> None:
    """There is a newer snapshot whenever one has been sent: whoever else is in the loop gets every second turn."""
    numbers = count()
    rendered: list[int] = []
    turns_of_another = 0

    def chunk_of(number: Snapshot) -> bytes:
        rendered.append(cast("int", number))
        if len(rendered) == 50:
            broker.close()
        return b"data: x\n\n"

    async def send(_: Any) -> None:
        """As a server does while the socket takes all: it waits for nothing."""

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def another() -> None:
        nonlocal turns_of_another
        while not broker.closed:
            turns_of_another += 1
            await asyncio.sleep(0)

    async def both() -> None:
        stream = EventStream(broker, chunk_of)
        await asyncio.gather(stream({"type": "http"}, receive, send), another())

    broker = Broker(lambda: cast("Snapshot", next(numbers)), 10)
    asyncio.run(both())

    assert len(rendered) == 50
    assert rendered == sorted(set(rendered))
    assert turns_of_another >= 49
    assert broker.streams == 0
