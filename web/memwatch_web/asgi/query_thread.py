"""A thread for queries that take too long for the event loop. Equal queries share the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from memwatch_web.asgi.bounded_thread import BoundedThread

# The longest history query takes 0.25 s (CSV of 20 series in 2,000 points), so the last one waits 4 s.
MAX_QUEUED = 16


class QueryThread:
    """Queries by key, in one thread.

    Python runs one thread at a time: a second query in parallel would only make both slower.
    """

    def __init__(self) -> None:
        self._thread = BoundedThread("queries", MAX_QUEUED)
        self._queued: dict[Hashable, asyncio.Task[bytes]] = {}

    async def run(self, key: Hashable, work: Callable[[], bytes]) -> bytes:
        """Return the result of `work`, or of queued work with the same key. Raises QueueFullError."""
        task = self._queued.get(key)
        if task is None:
            task = self._queued[key] = asyncio.create_task(self._thread.run(work))
            task.add_done_callback(lambda done: self._remove(key, done))
        # A client that disconnects must not cancel the query of another one.
        return await asyncio.shield(task)

    def close(self) -> None:
        """Cancel the queries that have not started."""
        self._thread.close()

    def _remove(self, key: Hashable, done: asyncio.Task[bytes]) -> None:
        del self._queued[key]
        if not done.cancelled():
            done.exception()  # without this, asyncio logs the error if no client is left to get it
