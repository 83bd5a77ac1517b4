"""Slow work for a face that must not wait: in a thread of its own, one piece at a time, shared by all who ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class NotDone(Exception):
    """No result, in a sentence: it takes too long, or the daemon is stopping."""


class Shared(Generic[A, T]):
    """`work` for whoever asks; who asks while it is under way gets what comes of it. For one event loop.

    Its thread is not waited for at exit, as a pool's would be: work that hangs in the kernel keeps nobody from
    stopping the daemon.
    """

    def __init__(self, work: Callable[[A], T], name: str, deadline_seconds: float) -> None:
        self._work = work
        self._name = name
        self._deadline = deadline_seconds
        self._running: asyncio.Future[T] | None = None
        self._closed = False

    async def ask(self, about: A) -> T:
        """What the work returns or raises. Raises NotDone after the deadline; the work itself goes on."""
        if self._running is None or self._running.done():
            self._running = asyncio.wrap_future(self._start(about))
        try:
            return await asyncio.wait_for(asyncio.shield(self._running), self._deadline)
        except asyncio.TimeoutError:
            raise NotDone(f"looking for {self._name} took more than {self._deadline:g} s") from None
        except asyncio.CancelledError:
            if self._closed:
                raise NotDone("memwatchd is stopping") from None
            raise

    def close(self) -> None:
        """Whoever waits gets NotDone at once."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()

    def _start(self, about: A) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(self._work(about))
            except Exception as error:  # noqa: BLE001  it is raised again where the result is awaited
                future.set_exception(error)

        try:
            threading.Thread(target=run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            raise NotDone(f"looking for {self._name} needs a thread: {error}") from None
        return future
