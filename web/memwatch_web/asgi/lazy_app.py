"""Application that is always there: /healthz and /readyz at once; metrics, pages and API loaded on demand.

The small application imports no framework: a machine that is only scraped or only sends alerts needs none.
Metrics add 2 MiB, pages 8, the API 24, of which FastAPI and pydantic are 16 (CPython 3.11, November 2026). Each
is loaded alone: a program that marks its steps loads no templates, a browser no FastAPI. All are also loaded when
memory gets tight, because loading 400 modules later would be worse.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from memwatch.core.runtime.own_process import trim_heap
from memwatch.core.runtime.worker import FailureLog
from memwatch.reporting.render.json import JSON_TYPE, answer_bytes
from memwatch_monitor.loop import Monitor
from memwatch_web.asgi.latest_snapshot import health_response, readiness_response
from memwatch_web.asgi.problems import BytesResponse, ProblemError, problem_response
from memwatch_web.asgi.routes import HEALTHZ, METRICS, READYZ, is_of_api
from memwatch_web.asgi.threads import NotCompletedError, NoThreadError, SingleFlight

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

# Usually a second or two. With exhausted memory, as long as the storage takes to read 300 files.
DEADLINE_SECONDS = 60.0
# Switch interval while 300 modules are loaded, in place of CPython's 5 ms. Sending an alert takes the interpreter
# twenty times, and tight memory is a reason for both.
SWITCH_SECONDS = 0.0005
# One application at a time: both share services, and each restores the switch interval that it found.
LOADING = threading.Lock()
ALERTS_FIRST_SECONDS = 2.0


class AppLoader:
    """ASGI app that calls `make` in a thread, once for concurrent requests. `name`: for messages.

    `is_light`: it takes so little time that it is made in the event loop where no thread can be started.
    """

    def __init__(self, name: str, make: Callable[[], ASGIApp], is_light: bool = False) -> None:
        self._name = name
        self._is_light = is_light
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
            try:
                return await self._making.ask(None)
            except NoThreadError:
                if not self._is_light:
                    raise
                return self._make_once(None)
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


class LazyApp:
    """ASGI app for /healthz and /readyz, with three applications, each loaded by its first request."""

    def __init__(self, monitor: Monitor, metrics: AppLoader, pages: AppLoader, api: AppLoader) -> None:
        self._at_once: dict[str, ASGIApp] = {
            METRICS: metrics,
            HEALTHZ: _answering(lambda: health_response(monitor)),
            READYZ: _answering(lambda: readiness_response(monitor)),
        }
        for feature in monitor.features:
            for path, answer in feature.routes().items():
                self._at_once[path] = _answering(partial(_json_response, answer, monitor))
        self._monitor = monitor
        self._parts = metrics, pages, api
        self.is_prepared = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        at_once = self._at_once.get(scope["path"]) if scope["method"] == "GET" else None
        try:
            await (at_once or self._parts[2 if is_of_api(scope["path"]) else 1])(scope, receive, send)
        except ProblemError as problem:
            headers, simulated = dict(problem.headers or {}), self._monitor.simulated
            refusal = problem_response(problem.status_code, problem.detail, headers, simulated)
            await refusal(scope, receive, send)

    async def prepare(self) -> None:
        """Load metrics, pages and API. Raises ProblemError."""
        for part in self._parts:
            await part.prepare()

    def prepare_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare before the first request, after pending alerts are sent. Thread-safe."""

        def prepare() -> None:
            asyncio.run_coroutine_threadsafe(self.prepare(), loop)

        self.is_prepared = True
        loop.call_soon_threadsafe(loop.call_later, ALERTS_FIRST_SECONDS, prepare)

    def close(self) -> None:
        for part in self._parts:
            part.close()


def _json_response(answer: Callable[[], Any], monitor: Monitor) -> BytesResponse:
    return BytesResponse(answer_bytes(answer(), monitor.simulated), JSON_TYPE)


def _answering(answer: Callable[[], BytesResponse]) -> ASGIApp:
    async def answer_now(scope: Scope, receive: Receive, send: Send) -> None:
        await answer()(scope, receive, send)

    return answer_now
