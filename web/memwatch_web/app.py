"""The application: the API and the pages, in one list. Whoever imports this imports FastAPI, 26 MiB."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from memwatch import __version__
from memwatch.monitor.loop import Monitor
from memwatch.notify.manager import Alerting
from memwatch.snapshot import Snapshot
from memwatch_web import error_handlers as refusals
from memwatch_web.api import owners as who
from memwatch_web.api.alerts import create_alert_router
from memwatch_web.api.fit import create_router as create_planner
from memwatch_web.api.ingest import create_router as create_hearing
from memwatch_web.api.inquiries import Inquiries
from memwatch_web.api.snapshot import create_router, refuse_when_full
from memwatch_web.asgi import static_files as files
from memwatch_web.asgi.health import current, health_of, readiness_of, stalled_seconds
from memwatch_web.asgi.options import FaceOptions
from memwatch_web.asgi.problems import Problem
from memwatch_web.asgi.render_cache import OncePerTick
from memwatch_web.asgi.sse import Broker, EventStream, sse
from memwatch_web.asgi.strict_query import refuse_unknown
from memwatch_web.metrics.endpoint import Scrapes
from memwatch_web.pages import silence_form
from memwatch_web.pages.fit_page import create_fit_page
from memwatch_web.pages.history_page import create_history_page
from memwatch_web.pages.process_list import GROUPS, BadView, By, View, view_of
from memwatch_web.pages.renderer import Pages


def create_app(
    monitor: Monitor,
    pages: Pages,
    options: Callable[[], FaceOptions],
    broker: Broker,
    alerting: Alerting,
    scrapes: Scrapes,
    inquiries: Inquiries,
) -> FastAPI:
    """Everything that one monitor answers."""
    app = Application(
        title="memwatchd",
        version=__version__,
        description="Memory of this machine: pools that add up, and shares inside them. Sizes are bytes.",
        docs_url=None,
        redoc_url=None,
        **_no_telemetry(),
    )
    refusals.install(app, pages, monitor.simulated)
    app.router.routes.insert(0, Route("/metrics", scrapes, methods=["GET"]))
    for router in (
        create_router(monitor, broker, inquiries),
        create_hearing(monitor),
        create_planner(monitor),
        create_alert_router(monitor, alerting),
        who.create_router(monitor, inquiries),
    ):
        app.include_router(router, dependencies=[Depends(refuse_unknown)])
    app.include_router(silence_form.create_router(alerting))
    app.include_router(create_fit_page(pages, lambda: current(monitor)))
    app.include_router(create_history_page(monitor, pages))
    _add_health(app, monitor)
    _add_pages(app, monitor, pages, broker)
    _add_patterns(app, pages, options)
    app.router.routes.extend(files.routes())
    return app


class Application(FastAPI):
    """FastAPI whose description is made when somebody asks for it: its models cost 2 MiB (November 2026)."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            from memwatch_web.api.openapi import with_answers

            self.openapi_schema = with_answers(super().openapi())
        return self.openapi_schema


def _no_telemetry() -> dict[str, Any]:
    """FastAPI from 0.145 on exports traces when an environment variable says so; a monitor must not."""
    if "telemetry" in inspect.signature(FastAPI).parameters:
        return {"telemetry": {"auto_configure": False, "tracing": False}}
    return {}


def _add_health(app: FastAPI, monitor: Monitor) -> None:
    """So that the description has them; the front answers them itself."""

    @app.get("/healthz", tags=["health"])
    async def healthz() -> Response:
        """200 while the loop ticks: the last tick is at most three intervals, or a second, old."""
        return health_of(monitor)

    @app.get("/readyz", tags=["health"])
    async def readyz() -> Response:
        """200 once the first snapshot exists."""
        return readiness_of(monitor)


def _add_pages(app: FastAPI, monitor: Monitor, pages: Pages, broker: Broker) -> None:
    for page in pages.names:
        if page not in ("history", "processes"):  # they depend on the query as well
            _add_page(app, monitor, pages, page)
    _add_processes(app, monitor, pages)
    streams = {stream: OncePerTick(_fragment_event(pages, stream)) for stream in pages.streams}

    @app.get("/live", include_in_schema=False)
    async def live(page: str = "overview") -> Response:
        if page not in streams:
            raise Problem(422, f"page is {page[:80]!r}: use one of {', '.join(streams)}.")
        refuse_when_full(broker)
        return EventStream(broker, streams[page].plain)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(pages.docs(monitor.simulated))

    @app.get("/last-words", include_in_schema=False)
    async def last_words() -> Response:
        return HTMLResponse(pages.last_words(monitor.last_words, monitor.simulated))


def _add_patterns(app: FastAPI, pages: Pages, options: Callable[[], FaceOptions]) -> None:
    @app.get("/patterns", include_in_schema=False)
    async def patterns() -> Response:
        if not options().patterns:
            raise Problem(404, "this page is for whoever changes the pages: set patterns = true under [web].")
        return HTMLResponse(pages.patterns())


def _add_page(app: FastAPI, monitor: Monitor, pages: Pages, page: str) -> None:
    shared = OncePerTick(lambda snapshot: pages.page(page, snapshot))

    async def show(request: Request) -> Response:
        return _page_answer(request, monitor, shared, lambda *now: pages.page(page, *now))

    app.add_api_route(pages.path(page), show, include_in_schema=False, name=page)


def _add_processes(app: FastAPI, monitor: Monitor, pages: Pages) -> None:
    """As somebody wants to see them; without a wish of one's own, the same bytes for everybody."""

    def face(by: By) -> OncePerTick:
        return OncePerTick(lambda snapshot: pages.page("processes", snapshot, None, View(by)))

    shared = {by: face(by) for by in GROUPS}

    @app.get(pages.path("processes"), include_in_schema=False)
    async def processes(request: Request, by: str = "process", sort: str = "-footprint", q: str = "") -> Response:
        try:
            view = view_of(by, sort, q, current(monitor))
        except BadView as error:
            raise Problem(422, str(error)) from None
        return _page_answer(
            request,
            monitor,
            shared[view.by] if view.is_shared else None,
            lambda snapshot, stalled: pages.page("processes", snapshot, stalled, view),
        )


def _page_answer(
    request: Request,
    monitor: Monitor,
    shared: OncePerTick | None,
    render: Callable[[Snapshot, float | None], bytes],
) -> Response:
    snapshot, stalled = current(monitor), stalled_seconds(monitor)
    headers = {"vary": "accept-encoding"}
    if shared is None or stalled is not None:
        return HTMLResponse(render(snapshot, stalled), headers=headers)
    if files.accepts_gzip(request):
        return HTMLResponse(shared.gzipped(snapshot), headers=headers | {"content-encoding": "gzip"})
    return HTMLResponse(shared.plain(snapshot), headers=headers)


def _fragment_event(pages: Pages, page: str) -> Callable[[Any], bytes]:
    return lambda snapshot: sse(page, pages.fragment(page, snapshot))
