"""Event loop with a virtual clock: when nothing is ready, the clock jumps to the next timer.

Timeouts are then exact, cost no real time and do not depend on the load of the machine. Sockets must deliver at
once, as Unix sockets do. With TCP, bytes may still be on their way when the clock jumps.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from support.waiting import MAX_WAIT_SECONDS

Result = TypeVar("Result")


class VirtualSelector(selectors.DefaultSelector):
    """Selector that advances `now` where another one would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # no timer: only another thread can wake the loop
            ready = super().select(MAX_WAIT_SECONDS)
            assert ready, "the loop has no timer and nothing to read"
            return ready
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose `time()` starts at 0 and advances only while nothing is ready."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in a new virtual loop, as `asyncio.run` does in a real one."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
