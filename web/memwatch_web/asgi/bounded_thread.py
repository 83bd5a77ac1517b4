"""One thread for work that would block the event loop, with a short queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAX_WAITING = 8


class QueueFullError(Exception):
    """The queue is full, or no thread can be started."""


class BoundedThread:
    """Thread that does one piece of work at a time, started on first use. For one event loop."""

    def __init__(self, name: str, max_waiting: int = MAX_WAITING) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._waiting = 0
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """Run `work` and return its result. Raises QueueFullError."""
        if self._waiting >= self._max_waiting:
            raise QueueFullError
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name)
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **named))
        except RuntimeError:  # no thread can be started, or the daemon is stopping
            raise QueueFullError from None
        self._waiting += 1
        try:
            return await future
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Cancel the work that has not started."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
