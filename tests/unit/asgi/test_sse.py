"""A slow event stream does not block the event loop."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, cast

from memwatch.snapshot import Snapshot
from memwatch_web.asgi.sse import Broker, EventStream


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
        stream = EventStream(broker, chunk_of)
        await asyncio.gather(stream({"type": "http"}, receive, send), another())

    broker = Broker(lambda: cast("Snapshot", next(numbers)), 10)
    asyncio.run(both())

    assert len(rendered) == 50
    assert rendered == sorted(set(rendered))
    assert turns_of_another >= 49
    assert broker.streams == 0
