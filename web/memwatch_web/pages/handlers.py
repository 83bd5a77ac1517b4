"""Handlers of simple pages and of the live stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history_recorder import HistoryRecorder
from memwatch_web.asgi.health import stalled_seconds
from memwatch_web.asgi.problems import ProblemError, refuse_repeated
from memwatch_web.asgi.render_cache import RenderCache
from memwatch_web.asgi.sse import Gzip, Identity, SharedDeflate, sse
from memwatch_web.asgi.static_files import VARY, accepts_gzip
from memwatch_web.pages.process_list import ListQueryError, ListView, parse_view
from memwatch_web.pages.process_page import parse_pid, stream_process
from memwatch_web.pages.renderer import PROCESS
from memwatch_web.pages.services import PageServices


def page(name: str) -> Callable[[PageServices, Request], Awaitable[Response]]:
    """Build the handler of a page that depends on the latest snapshot alone."""

    async def show(services: PageServices, request: Request) -> Response:
        pages = services.pages
        shared = services.caches.get(("page", name), lambda _, snapshot: pages.page(name, snapshot))
        return answer(services, request, shared, lambda *now: pages.page(name, *now))

    show.__name__ = name
    return show


async def processes(services: PageServices, request: Request) -> Response:
    """Show the process list. The default view of each grouping is rendered once for all clients."""
    pages, query = services.pages, request.query_params
    refuse_repeated(query)
    try:
        view = parse_view(query.get("by", "process"), query.get("sort", "-footprint"), query.get("q", ""))
    except ListQueryError as error:
        raise ProblemError(422, str(error)) from None
    plain = ListView(view.by)
    shared = services.caches.get(
        ("processes", view.by), lambda _, snapshot: pages.page("processes", snapshot, None, plain)
    )
    return answer(
        services,
        request,
        shared if view.is_shared else None,
        lambda snapshot, stalled: pages.page("processes", snapshot, stalled, view),
    )


async def live(services: PageServices, request: Request) -> Response:
    """Stream the live part of a page, once for each sample. `title`: the figures of a page's title alone."""
    pages, query = services.pages, request.query_params
    page = query.get("page", "overview")
    if page == PROCESS and "pid" in query:
        return stream_process(services, request, parse_pid(query["pid"]))
    if page not in pages.streams:
        raise ProblemError(422, f"page is {page[:80]!r}: use one of {', '.join(pages.streams)}.")
    shared = services.caches.get(("live", page), lambda _, snapshot: sse(page, pages.fragment(page, snapshot)))
    if not accepts_gzip(request):
        return services.stream(request, Identity(shared.plain))
    return services.stream(request, Gzip(services.deflated.setdefault(page, SharedDeflate(shared))))


async def docs(services: PageServices) -> Response:
    return HTMLResponse(services.pages.docs(services.monitor.simulated))


async def runbooks(services: PageServices) -> Response:
    return HTMLResponse(services.pages.runbooks(services.monitor.simulated))


async def last_words(services: PageServices) -> Response:
    monitor = services.monitor
    words = monitor.features.get(HistoryRecorder).unclean_shutdown
    return HTMLResponse(services.pages.last_words(words, monitor.simulated))


def answer(
    services: PageServices,
    request: Request,
    shared: RenderCache | None,
    render: Callable[[Snapshot, float | None], bytes],
) -> Response:
    snapshot, stalled = services.current(), stalled_seconds(services.monitor)
    if shared is None or stalled is not None:
        return HTMLResponse(render(snapshot, stalled))
    if accepts_gzip(request):
        return HTMLResponse(shared.gzipped(snapshot), headers={"content-encoding": "gzip", "vary": VARY})
    return HTMLResponse(shared.plain(snapshot))
