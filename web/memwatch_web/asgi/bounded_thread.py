"""One thread for checks that would block the event loop, with a short queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAX_WAITING = 8


class TooManyChecksError(Exception):
    """The queue of checks is full."""


class BoundedThread:
    """Thread that runs one check at a time, started on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting = 0
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, check: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """Run a check and return its result. Raises TooManyChecksError."""
        if self._waiting >= MAX_WAITING:
            raise TooManyChecksError
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: check(*args, **named))
        finally:
            self._waiting -= 1
