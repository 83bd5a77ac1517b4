"""Pages of a sample machine on a real server with the real security headers; the live stream can be stopped."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memwatch.core.events import Event
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.neighbours.machines import Machine
from memwatch_monitor.notify.status import AlertView
from memwatch_web.api.history_parameters import instant
from memwatch_web.asgi.access import SECURITY_HEADERS
from memwatch_web.pages.fit_page import build_form
from memwatch_web.pages.history_data import RANGES, HistoryInput, find_range
from memwatch_web.pages.history_page import build_answer, parse_pool_query, try_query
from memwatch_web.pages.history_view import RejectedQuery, build_view
from memwatch_web.pages.machine_wall import build_tile
from memwatch_web.pages.processes import parse_view
from memwatch_web.pages.renderer import MachinePage, Pages
from memwatch_web.pages_app import parse_stream_view
from support import pattern_samples as samples
from support.paths import STATIC
from support.patterns_page import PATTERNS, render_patterns
from support.sample_past import end_of_run, past_of
from support.waiting import MAX_WAIT_SECONDS

OPENAPI = {
    "openapi": "3.1.0",
    "info": {"title": "memwatchd", "version": "0.1.0"},
    "paths": {
        "/api/v1/pools": {
            "get": {
                "tags": ["memory"],
                "summary": "Pools",
                "parameters": [{"name": "points", "in": "query", "schema": {"type": "integer"}}],
                "responses": {
                    "200": {
                        "description": "ok",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pool"}}},
                    }
                },
            }
        }
    },
    "components": {"schemas": {"Pool": {"type": "object", "properties": {"size_bytes": {"type": "integer"}}}}},
}


BEGAN = time.time()
SILENCES = tuple(
    replace(one, created_unix=BEGAN, until_unix=BEGAN + one.until_unix - one.created_unix)
    for one in samples.SILENCES
)
ALERTING = AlertView(
    samples.ALERTS,
    SILENCES,
    tuple(samples.receivers()),
    samples.EVENTS,
    durable=True,
    disk_errors=0,
    rules=samples.RULE_ROWS,
)


class Site:
    """Server of `snapshot`, moved to the present. `frozen` stops events of streams, `refusing` ends and rejects.

    `speed`: seconds of the machine's time per second. `firing`: number of firing alerts. `machines`: this one and
    its neighbours, none by default.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        interval_seconds: float = 0.2,
        still: bool = False,
        speed: float = 1.0,
        machines: Callable[[Snapshot], Sequence[Machine]] | None = None,
        events: Sequence[Event] = samples.EVENTS,
    ) -> None:
        self.snapshot = snapshot
        self.frozen = False
        self.refusing = False
        self.firing = 0
        self._pages = Pages(
            events=lambda: events,
            alerting=lambda: ALERTING,
            firing=lambda: self.firing,
            past=self._known_past,
            has_neighbours=lambda: machines is not None,
        )
        self._pages.machines = machines or (lambda _: ())
        self.interval_seconds = interval_seconds
        self._speed = speed
        self._began = time.monotonic()
        self._still = still
        self._cached_past: HistoryInput | None = None

    def now(self) -> Snapshot:
        if self._still:
            return self.snapshot
        moment = time.monotonic()
        return replace(
            self.snapshot,
            seq=self.snapshot.seq + int(moment / self.interval_seconds),
            unix=time.time() + (self._speed - 1) * (moment - self._began),
            monotonic=moment,
            interval_seconds=self.interval_seconds,
            self_usage=replace(self.snapshot.self_usage, cpu_seconds=moment * 0.0012),
        )

    def _known_past(self) -> HistoryInput:
        self._cached_past = self._cached_past or past_of(self.now())
        return self._cached_past

    def add_marks(self, number: int) -> None:
        """Add events to the past, a minute apart."""
        past, now = past_of(self.now()), self.now().unix
        marks = [Event(100 + at, now - 60 * at, "mark", f"step {number - at}") for at in range(number)]
        self._cached_past = replace(past, events=[*marks, *past.events])

    def app(self) -> Starlette:
        routes = [Route(self._pages.path(name), self._show(name)) for name in self._pages.names]
        return Starlette(
            routes=[
                Route("/history", self._past),
                Route("/machines/{name}", self._machine),
                Route("/history/picture", self._picture),
                *routes,
                Route("/landscape", self._landscape),
                Route("/live", self._live),
                Route("/fit", lambda wish: self._html(self._fit(wish.query_params))),
                Route("/last-words", lambda _: self._html(self._pages.last_words(end_of_run(self.snapshot)))),
                Route("/patterns", lambda _: self._html(render_patterns())),
                Route("/patterns.css", lambda _: FileResponse(PATTERNS / "patterns.css")),
                Route("/docs", lambda _: self._html(self._pages.docs())),
                Route("/openapi.json", lambda _: JSONResponse(OPENAPI, headers=dict(SECURITY_HEADERS))),
                Mount("/static", StaticFiles(directory=STATIC)),
            ]
        )

    def _show(self, name: str) -> Any:
        async def show(request: Request) -> Response:
            snapshot, wish = self.now(), request.query_params
            view = parse_view(wish.get("by", "process"), wish.get("sort", "-footprint"), wish.get("q", ""))
            span = find_range(wish.get("range"), RANGES)
            return self._html(self._pages.page(name, snapshot, view=view, span=span))

        return show

    async def _landscape(self, request: Request) -> Response:
        snapshot = self.now()
        at = instant("at", request.query_params["at"], snapshot.unix)
        return self._html(self._pages.landscape_then(snapshot, self._known_past(), at, RANGES[0]))

    async def _past(self, request: Request) -> Response:
        snapshot = self.now()
        query = try_query(self._known_past(), request.query_params, snapshot)
        shown = build_answer(self._known_past(), query, snapshot)
        return self._html(self._pages.history(snapshot, shown), 422 if isinstance(shown, RejectedQuery) else 200)

    async def _machine(self, request: Request) -> Response:
        """Return the page of a neighbour, with its last tick in place of all."""
        snapshot, name = self.now(), request.path_params["name"]
        found = next(one for one in self._pages.machines(snapshot) if one.name == name)
        ticks = [found.tick] * 3 if found.tick else []
        return self._html(self._pages.machine(snapshot, MachinePage(build_tile(found), None, None, ticks)))

    def _fit(self, fields: Mapping[str, str]) -> bytes:
        snapshot = self.now()
        return self._pages.fit(snapshot, build_form(fields, snapshot))

    async def _picture(self, request: Request) -> Response:
        snapshot = self.now()
        query = parse_pool_query(self._known_past(), request.query_params, snapshot)
        body = self._pages.picture(build_view(self._known_past(), query, snapshot).charts[0])
        return Response(body, media_type="image/svg+xml", headers=dict(SECURITY_HEADERS))

    @staticmethod
    def _html(body: bytes, status_code: int = 200) -> Response:
        return HTMLResponse(body, status_code, headers=dict(SECURITY_HEADERS))

    async def _live(self, request: Request) -> Response:
        if self.refusing:
            return JSONResponse({"detail": "all streams are taken"}, status_code=503)
        events = self._events(request.query_params["page"], request.query_params)
        return StreamingResponse(events, media_type="text/event-stream", headers=dict(SECURITY_HEADERS))

    async def _events(self, page: str, query: QueryParams) -> AsyncIterator[bytes]:
        view = parse_stream_view(page, query)
        while not self.refusing:
            if not self.frozen:
                lines = self._pages.fragment(page, self.now(), view).split(b"\n")
                yield (
                    b"event: " + page.encode() + b"\n" + b"".join(b"data: " + one + b"\n" for one in lines) + b"\n"
                )
            await asyncio.sleep(self.interval_seconds)


@contextmanager
def served(site: Site) -> Iterator[str]:
    """Yield the address of a running site."""
    with _serving(site.app()) as address:
        try:
            yield address
        finally:
            site.refusing = True


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(MAX_WAIT_SECONDS)
        assert not thread.is_alive()
        listener.close()


class Stage:
    """Server of one site after another, at one address, whose static files a browser reads once."""

    def __init__(self) -> None:
        self.address = ""
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    @contextmanager
    def opened(self) -> Iterator[Stage]:
        with _serving(self) as self.address:
            yield self

    @contextmanager
    def showing(self, site: Site) -> Iterator[str]:
        """Yield the address of a site that is running meanwhile."""
        self._app = site.app()
        try:
            yield self.address
        finally:
            site.refusing = True
