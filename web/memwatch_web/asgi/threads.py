"""Work that would block the event loop: in a thread with a short queue, or once for all who ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")

MAX_WAITING = 8
# The longest history query takes 0.25 s (CSV of 20 series in 2,000 points), so the last one waits 4 s.
MAX_QUEUED = 16


class QueueFullError(Exception):
    """The queue is full, or no thread can be started."""


class BoundedThread:
    """Thread that does one piece of work at a time, started on first use. For one event loop."""

    def __init__(self, name: str, max_waiting: int = MAX_WAITING) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._waiting = 0
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
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


class NotCompletedError(Exception):
    """No result: the deadline passed, or the daemon is stopping."""


class NoThreadError(NotCompletedError):
    """No thread could be started for it."""


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
            raise NoThreadError(f"no thread for {self._name}: {error}") from None
        return future
