"""Slow work for a face that must not wait: in a thread of its own, one piece at a time, shared by all who ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One piece of work at a time: whoever asks while it is under way gets what comes of it. For one event loop.

    Its thread is not waited for at exit, as a pool's would be: work that hangs in the kernel keeps nobody from
    stopping the daemon.
    """

    def __init__(self, name: str, deadline_seconds: float) -> None:
        self._name = name
        self._deadline = deadline_seconds
        self._running: asyncio.Future[T] | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises TimeoutError after the deadline, and the work goes on."""
        if self._running is None or self._running.done():
            self._running = asyncio.wrap_future(self._start(work))
        try:
            return await asyncio.wait_for(asyncio.shield(self._running), self._deadline)
        except asyncio.TimeoutError:  # since 3.11 the same as TimeoutError
            raise TimeoutError from None

    def _start(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  it is raised again where the result is awaited
                future.set_exception(error)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future
