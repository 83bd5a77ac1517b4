"""Lazy application: /metrics, /healthz and /readyz work at once, API and pages are loaded on the first request.

FastAPI, pydantic, Jinja2 and 40 routes take 23 of 62 MiB (CPython 3.11, November 2026). A machine that is only
scraped or only sends alerts never needs them. They are also loaded when memory gets tight, because loading 300
modules later would be worse.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch.monitor.loop import Monitor
from memwatch.runtime.failure_log import FailureLog
from memwatch_web.asgi.health import health_response, readiness_response
from memwatch_web.asgi.problems import ProblemError, problem_response
from memwatch_web.asgi.single_flight import NotCompletedError, SingleFlight

log = logging.getLogger(__name__)

# Usually a second or two. With exhausted memory, as long as the storage takes to read 300 files.
DEADLINE_SECONDS = 60.0
# Switch interval while 300 modules are loaded, in place of CPython's 5 ms. Sending an alert takes the interpreter
# twenty times, and tight memory is a reason for both.
SWITCH_SECONDS = 0.0005
ALERTS_FIRST_SECONDS = 2.0


class LazyApp:
    """ASGI app for /metrics, /healthz and /readyz. Everything else goes to the application that `make` creates."""

    def __init__(self, monitor: Monitor, metrics: ASGIApp, make: Callable[[], ASGIApp]) -> None:
        self._at_once: dict[str, ASGIApp] = {
            "/metrics": metrics,
            "/healthz": _answering(lambda: health_response(monitor)),
            "/readyz": _answering(lambda: readiness_response(monitor)),
        }
        self._monitor = monitor
        self._app: ASGIApp | None = None
        self._making = SingleFlight(self._call_once(make), "the API and the pages", DEADLINE_SECONDS)
        self._failure_log = FailureLog()
        self.is_requested = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        at_once = self._at_once.get(scope["path"]) if scope["method"] == "GET" else None
        try:
            app = at_once or self._app or await self.prepare()
            await app(scope, receive, send)
        except ProblemError as problem:
            headers, simulated = dict(problem.headers or {}), self._monitor.simulated
            refusal = problem_response(problem.status_code, problem.detail, headers, simulated)
            await refusal(scope, receive, send)

    async def prepare(self) -> ASGIApp:
        """Return the application, created once for concurrent requests. Raises Problem."""
        self.is_requested = True
        try:
            return await self._making.ask(None)
        except NotCompletedError as error:
            words = str(error)
        except (ImportError, MemoryError, OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            words = f"the API and the pages could not be loaded: {type(error).__name__}: {error}"
            if self._failure_log.admits(words):
                log.error("%s", words)
        raise ProblemError(503, f"{words}. Retry in 5 s.", headers={"Retry-After": "5"})

    def prepare_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create the application before the first request, after pending alerts are sent. Thread-safe."""

        def prepare() -> None:
            asyncio.run_coroutine_threadsafe(self.prepare(), loop)

        self.is_requested = True
        loop.call_soon_threadsafe(loop.call_later, ALERTS_FIRST_SECONDS, prepare)

    def close(self) -> None:
        self._making.close()

    def _call_once(self, make: Callable[[], ASGIApp]) -> Callable[[None], ASGIApp]:
        """Keep the application even if the request that triggered it was cancelled."""

        def keep(_: None) -> ASGIApp:
            if self._app is None:
                with giving_way():
                    self._app = make()
            return self._app

        return keep


@contextmanager
def giving_way() -> Iterator[None]:
    """Let other threads take the interpreter more often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _answering(answer: Callable[[], Response]) -> ASGIApp:
    async def answer_now(scope: Scope, receive: Receive, send: Send) -> None:
        await answer()(scope, receive, send)

    return answer_now
