"""Application that is created by the first request for it."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch.core.runtime.failure_log import FailureLog
from memwatch.core.runtime.heap import trim_heap
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.single_flight import NotCompletedError, SingleFlight

log = logging.getLogger(__name__)

# Usually a second or two. With exhausted memory, as long as the storage takes to read 300 files.
DEADLINE_SECONDS = 60.0
# Switch interval while 300 modules are loaded, in place of CPython's 5 ms. Sending an alert takes the interpreter
# twenty times, and tight memory is a reason for both.
SWITCH_SECONDS = 0.0005
# One application at a time: both share services, and each restores the switch interval that it found.
LOADING = threading.Lock()


class AppLoader:
    """ASGI app that calls `make` in a thread, once for concurrent requests. `name`: for messages."""

    def __init__(self, name: str, make: Callable[[], ASGIApp]) -> None:
        self._name = name
        self._make = make
        self._app: ASGIApp | None = None
        self._making = SingleFlight(self._make_once, name, DEADLINE_SECONDS)
        self._failure_log = FailureLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self.prepare()
        await app(scope, receive, send)

    async def prepare(self) -> ASGIApp:
        """Return the application. Raises ProblemError if it cannot be created; the next request tries again."""
        try:
            return await self._making.ask(None)
        except NotCompletedError as error:
            words = str(error)
        except (ImportError, MemoryError, OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            words = f"{self._name} could not be loaded: {type(error).__name__}: {error}"
            if self._failure_log.admits(words):
                log.error("%s", words)
        raise ProblemError(503, f"{words}. Retry in 5 s.", headers={"Retry-After": "5"})

    def close(self) -> None:
        self._making.close()

    def _make_once(self, _: None) -> ASGIApp:
        """Keep the application even if the request that triggered it was cancelled."""
        if self._app is None:
            with LOADING, giving_way():
                self._app = self._make()
            gc.freeze()  # these objects live as long as the process; garbage collection can skip them
            trim_heap()  # of what reading and compiling modules left: 2 MiB
        return self._app


@contextmanager
def giving_way() -> Iterator[None]:
    """Let other threads take the interpreter more often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
