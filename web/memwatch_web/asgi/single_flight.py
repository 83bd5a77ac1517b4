"""Single-flight execution of slow work in a thread, for request handlers that must not block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class NotCompletedError(Exception):
    """No result: the deadline passed, or the daemon is stopping."""


def start_thread(run: Callable[[], None], name: str) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()


class SingleFlight(Generic[A, T]):
    """Run `work` in a thread, single-flight: concurrent callers share the result. For one event loop.

    The thread is not joined at exit, unlike those of a pool, so that work that hangs in the kernel does not keep
    the daemon from stopping. `start` runs a function in a thread of that name, or raises RuntimeError.
    """

    def __init__(
        self,
        work: Callable[[A], T],
        name: str,
        deadline_seconds: float,
        start: Callable[[Callable[[], None], str], None] = start_thread,
    ) -> None:
        self._work = work
        self._start_thread = start
        self._name = name
        self._deadline = deadline_seconds
        self._running: asyncio.Future[T] | None = None
        self._closed = False

    async def ask(self, about: A) -> T:
        """Return the result of the work. Raise NotCompletedError after the deadline; the work itself continues."""
        if self._running is None or self._running.done():
            self._running = asyncio.wrap_future(self._start(about))
        try:
            return await asyncio.wait_for(asyncio.shield(self._running), self._deadline)
        except asyncio.TimeoutError:
            raise NotCompletedError(f"timed out after {self._deadline:g} s: {self._name}") from None
        except asyncio.CancelledError:
            if self._closed:
                raise NotCompletedError("memwatchd is stopping") from None
            raise

    def close(self) -> None:
        """Cancel: waiting callers get NotCompletedError."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()

    def _start(self, about: A) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(self._work(about))
            except Exception as error:  # noqa: BLE001  raised again where the result is awaited
                future.set_exception(error)

        try:
            self._start_thread(run, self._name)
        except RuntimeError as error:
            raise NotCompletedError(f"no thread for {self._name}: {error}") from None
        return future
