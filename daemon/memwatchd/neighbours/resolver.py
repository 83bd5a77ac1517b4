"""Resolve names in daemon threads: getaddrinfo(3) has no deadline, and the process must end while it hangs.

asyncio's own executor is waited for when the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

log = logging.getLogger(__name__)

# One that hangs must not delay the others.
MAX_THREADS = 2


class ResolvingLoop(asyncio.SelectorEventLoop):
    """Event loop that resolves names in its own threads, which start with the first name."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0

    async def getaddrinfo(self, host: Any, port: Any, **hints: int) -> Any:  # noqa: ANN401
        answer: asyncio.Future[Any] = self.create_future()

        def resolve() -> None:
            if answer.cancelled():
                return
            try:
                found, error = socket.getaddrinfo(host, port, **hints), None
            except (OSError, UnicodeError) as failure:
                found, error = [], failure
            self._deliver(answer, found, error)

        self._asked.put(resolve)
        if self._threads < MAX_THREADS:
            threading.Thread(target=self._work, name="resolve", daemon=True).start()
            self._threads += 1
        return await answer

    def close(self) -> None:
        for _ in range(self._threads):
            self._asked.put(None)
        super().close()

    def _work(self) -> None:
        while (resolve := self._asked.get()) is not None:
            resolve()

    def _deliver(self, answer: asyncio.Future[Any], found: Any, error: Exception | None) -> None:  # noqa: ANN401
        def set_answer() -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)

        try:
            self.call_soon_threadsafe(set_answer)
        except RuntimeError:
            log.debug("a name was resolved after the loop was closed")
