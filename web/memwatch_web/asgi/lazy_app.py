"""Application that is always there: /metrics, /healthz and /readyz at once, pages and API loaded on demand.

The small application imports neither FastAPI nor Jinja2: a machine that is only scraped or only sends alerts needs
neither. The pages add 8 MiB, the API 24, of which FastAPI and pydantic are 16 (CPython 3.11, November 2026). Each
is loaded alone: a program that marks its steps loads no templates, a browser no FastAPI. Both are also loaded when
memory gets tight, because loading 300 modules later would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from memwatch.monitor.loop import Monitor
from memwatch_web.asgi.app_loader import AppLoader
from memwatch_web.asgi.health import health_response, readiness_response
from memwatch_web.asgi.problems import ProblemError, problem_response
from memwatch_web.asgi.routes import HEALTHZ, METRICS, READYZ, is_of_api

ALERTS_FIRST_SECONDS = 2.0


class LazyApp:
    """ASGI app for /metrics, /healthz and /readyz, with two applications, each loaded by its first request."""

    def __init__(self, monitor: Monitor, metrics: ASGIApp, pages: AppLoader, api: AppLoader) -> None:
        self._at_once: dict[str, ASGIApp] = {
            METRICS: metrics,
            HEALTHZ: _answering(lambda: health_response(monitor)),
            READYZ: _answering(lambda: readiness_response(monitor)),
        }
        for feature in monitor.features:
            for path, answer in feature.routes().items():
                self._at_once[path] = _answering(partial(_json_response, answer, monitor))
        self._monitor = monitor
        self._parts = pages, api
        self.is_prepared = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        at_once = self._at_once.get(scope["path"]) if scope["method"] == "GET" else None
        try:
            await (at_once or self._parts[is_of_api(scope["path"])])(scope, receive, send)
        except ProblemError as problem:
            headers, simulated = dict(problem.headers or {}), self._monitor.simulated
            refusal = problem_response(problem.status_code, problem.detail, headers, simulated)
            await refusal(scope, receive, send)

    async def prepare(self) -> None:
        """Load pages and API. Raises ProblemError."""
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


def _json_response(answer: Callable[[], Any], monitor: Monitor) -> Response:
    from memwatch.monitor.render.json import JSON_TYPE, answer_bytes

    return Response(answer_bytes(answer(), monitor.simulated), media_type=JSON_TYPE)


def _answering(answer: Callable[[], Response]) -> ASGIApp:
    async def answer_now(scope: Scope, receive: Receive, send: Send) -> None:
        await answer()(scope, receive, send)

    return answer_now
