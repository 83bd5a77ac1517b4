"""A thread for queries that take too long for the event loop. Equal queries share the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

# The longest history query takes 0.25 s (CSV of 20 series in 2,000 points), so the last one waits 4 s.
MAX_QUEUED = 16


class QueryQueueFullError(Exception):
    """The queue of queries is full."""


class QueryThread:
    """One thread and a bounded queue, for one event loop.

    Python runs one thread at a time: a second query in parallel would only make both slower.
    """

    def __init__(self, max_queued: int = MAX_QUEUED) -> None:
        self._max_queued = max_queued
        self._queued: dict[Hashable, asyncio.Future[bytes]] = {}
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, key: Hashable, work: Callable[[], bytes]) -> bytes:
        """Return the result of `work`, or of queued work with the same key. Raises QueryQueueFullError."""
        future = self._queued.get(key)
        if future is None:
            future = self._queue(key, work)
        # A client that disconnects must not cancel the query of another one.
        return await asyncio.shield(future)

    def close(self) -> None:
        """Cancel the queries that have not started."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _queue(self, key: Hashable, work: Callable[[], bytes]) -> asyncio.Future[bytes]:
        if len(self._queued) >= self._max_queued:
            raise QueryQueueFullError
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "queries")
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError:  # no thread can be started, or the daemon is stopping
            raise QueryQueueFullError from None
        self._queued[key] = future
        future.add_done_callback(lambda done: self._remove(key, done))
        return future

    def _remove(self, key: Hashable, done: asyncio.Future[bytes]) -> None:
        del self._queued[key]
        if not done.cancelled():
            done.exception()  # without this, asyncio logs the error if no client is left to get it
