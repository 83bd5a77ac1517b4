"""The pages: their table of routes, the handlers of simple ones, and the Starlette application.

Importing this module imports no FastAPI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import signature
from urllib.parse import parse_qsl

from msgspec import Struct
from starlette import routing
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from memwatch.core.silences import MAX_SECONDS, MAX_SILENCES
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.alerts.rules import EVENTS
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.neighbours.neighbour import HOUR_STEP_SECONDS
from memwatch_monitor.notify.manager import SilenceLimitError
from memwatch_web.asgi import static_files
from memwatch_web.asgi.caller import caller_of
from memwatch_web.asgi.latest_snapshot import RenderCache, stalled_seconds
from memwatch_web.asgi.problems import ErrorAnswer, ProblemError, refuse_repeated
from memwatch_web.asgi.routes import FIT_PAGE, LIVE, Route
from memwatch_web.asgi.sse import FORMS, Gzip, Identity, SharedDeflate, keep_form, sse
from memwatch_web.asgi.static_files import VARY, Compression, accepts_gzip
from memwatch_web.pages import fit_page, history_page, incident_files, neighbour_picture, picture
from memwatch_web.pages.history_data import available_ranges, find_range
from memwatch_web.pages.history_page import parse_pid, stream_process
from memwatch_web.pages.machine_wall import build_tile
from memwatch_web.pages.processes import ListQueryError, ListView, parse_view
from memwatch_web.pages.renderer import PROCESS, MachinePage, PageServices
from memwatch_web.pages.server_charts import draw_ticks

HOUR_SECONDS = 3600.0
MIN_HOURS, MAX_HOURS = 0.1, MAX_SECONDS / HOUR_SECONDS
MAX_REASON_LENGTH, MAX_TARGET_LENGTH, MAX_DIGITS = 500, 256, 12
MAX_ROWS = 120
# A view of one client is rendered this often, also while samples come ten times a second: 50 rows take 22 ms.
VIEW_SECONDS = 0.9


def page(name: str) -> Callable[[PageServices, Request], Awaitable[Response]]:
    """Build the handler of a page that depends on the latest snapshot alone."""

    async def show(services: PageServices, request: Request) -> Response:
        pages = services.pages
        shared = services.caches.get(("page", name), lambda _, snapshot: pages.page(name, snapshot))
        return answer(services, request, shared, lambda *now: pages.page(name, *now))

    show.__name__ = name
    return show


async def overview(services: PageServices, request: Request) -> Response:
    """Show the overview. `range`: how much of the past, ten minutes by default."""
    pages, query = services.pages, request.query_params
    span = find_range(query.get("range") or None, available_ranges(services.monitor.rules.tier_specs))
    shared = services.caches.get(
        ("overview", span.name), lambda _, snapshot: pages.page("overview", snapshot, span=span)
    )
    return answer(
        services, request, shared, lambda snapshot, stalled: pages.page("overview", snapshot, stalled, span=span)
    )


async def processes(services: PageServices, request: Request) -> Response:
    """Show the process list. The default view of each grouping is rendered once for all clients."""
    pages, query = services.pages, request.query_params
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
    """Stream the live part of a page, once for each sample. `title`: the figures of a page's title alone.

    `form`: that of the pictures of the overview which the page shows, both by default.
    """
    pages, query = services.pages, request.query_params
    page = query.get("page", "overview")
    if page == PROCESS and "pid" in query:
        return stream_process(services, request, parse_pid(query["pid"]))
    if page not in pages.streams:
        raise ProblemError(422, f"page is {page[:80]!r}: use one of {', '.join(pages.streams)}.")
    view = parse_stream_view(page, query)
    if view is not None and not view.is_shared:
        return stream_view(services, request, page, view)
    form = query.get("form", "")
    if form not in ("", *FORMS):
        raise ProblemError(422, f"form is {form[:80]!r}: use {' or '.join(FORMS)}, or leave it out for both.")
    shared = services.caches.get(("live", page), lambda _, snapshot: sse(page, pages.fragment(page, snapshot)))
    if form and page.startswith("overview"):
        whole = shared
        shared = services.caches.get(("live", page, form), lambda _, one: keep_form(whole.plain(one), form))
    if not accepts_gzip(request):
        return services.stream(Identity(shared.plain))
    return services.stream(Gzip(services.deflated.setdefault(f"{page} {form}", SharedDeflate(shared))))


def parse_stream_view(page: str, query: QueryParams) -> ListView | None:
    """Return the view of the process list that a stream asks for, None for other pages. Raises ProblemError."""
    name, _, group = page.partition("-")
    if name != "processes":
        return None
    try:
        return parse_view(group or "process", query.get("sort", "-footprint"), query.get("q", ""))
    except ListQueryError as error:
        raise ProblemError(422, str(error)) from None


def stream_view(services: PageServices, request: Request, page: str, view: ListView) -> Response:
    """Stream the process list in an order or with a search of one client, rendered for it at most once a second."""
    pages = services.pages
    last: list[tuple[float, bytes]] = []

    def render(snapshot: Snapshot) -> bytes:
        if not last or not 0 <= snapshot.monotonic - last[0][0] < VIEW_SECONDS:
            last[:] = [(snapshot.monotonic, sse(page, pages.fragment(page, snapshot, view)))]
        return last[0][1]

    cache = RenderCache(render)
    return services.stream(Gzip(SharedDeflate(cache)) if accepts_gzip(request) else Identity(cache.plain))


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


async def incidents(services: PageServices) -> Response:
    monitor = services.monitor
    observer = monitor.features.get(IncidentObserver)
    return HTMLResponse(services.pages.incidents(observer.log.heads(), monitor.simulated, observer.left_out()))


async def machine(services: PageServices, request: Request) -> Response:
    """Show one neighbour."""
    name = request.path_params["name"]
    found, past = services.machine(name), services.neighbours.past(name)
    recent, hour = (past.recent, past.hour) if past else ((), ())
    view = MachinePage(
        build_tile(found),
        draw_ticks(recent, 1.0),
        draw_ticks(hour, HOUR_STEP_SECONDS),
        list(recent)[: -MAX_ROWS - 1 : -1],
    )
    return HTMLResponse(services.pages.machine(services.current(), view))


class FormError(ValueError):
    """An invalid form; the message names the valid values."""


class SilenceRequest(Struct, frozen=True):
    """A requested silence. `event` and `target` are None for all."""

    seconds: float
    event: str | None
    target: str | None
    reason: str


def parse_silence_form(body: bytes) -> SilenceRequest:
    """Parse the form. Raises FormError, and ProblemError for a field that is given twice."""
    try:
        fields = QueryParams(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=10))
    except ValueError:
        raise FormError("the body is not a UTF-8 form: send hours=8&reason=maintenance.") from None
    refuse_repeated(fields)
    reason, event, target = (fields.get(name, "").strip() for name in ("reason", "event", "target"))
    if not 0 < len(reason) <= MAX_REASON_LENGTH:
        raise FormError(
            f"reason has {len(reason)} characters: use 1 to {MAX_REASON_LENGTH} to explain the silence."
        )
    if event and event not in EVENTS:
        raise FormError(f"event is {event[:80]!r}: use one of {', '.join(EVENTS)}, or leave it out.")
    if len(target) > MAX_TARGET_LENGTH:
        raise FormError(f"target has {len(target)} characters: use {MAX_TARGET_LENGTH} at most, or leave it out.")
    return SilenceRequest(_hours(fields) * HOUR_SECONDS, event or None, target or None, reason)


def _hours(fields: Mapping[str, str]) -> float:
    text = fields.get("hours", "").strip()
    try:
        hours = float(text) if len(text) <= MAX_DIGITS else -1.0
    except ValueError:
        hours = -1.0
    if not MIN_HOURS <= hours <= MAX_HOURS:
        raise FormError(f"hours is {text[:20]!r}: use a number from {MIN_HOURS:g} to {MAX_HOURS:g}, such as 8.")
    return hours


async def silence(services: PageServices, request: Request) -> Response:
    """Create the silence, or end the one that `end` in the query names, and redirect to the page."""
    ended = request.query_params.get("end")
    if ended is not None:
        services.end_silence(ended, caller_of(request.scope))
        return RedirectResponse("alerts#silences", status_code=303)
    try:
        wish = parse_silence_form(await request.body())
        services.silence(wish.seconds, wish.event, wish.target, wish.reason, caller_of(request.scope))
    except FormError as error:
        raise ProblemError(422, str(error)) from None
    except SilenceLimitError:
        raise ProblemError(409, f"there are already {MAX_SILENCES} silences: expire one first.") from None
    return RedirectResponse("alerts#silences", status_code=303)


# fmt: off
PAGES = (
    Route("GET",    "/",                            overview,                     "text/html"),
    Route("GET",    "/landscape",                   picture.landscape,            "text/html"),
    Route("GET",    "/history",                     history_page.history,         "text/html"),
    Route("GET",    "/history/picture",             history_page.history_picture, "image/svg+xml"),
    Route("GET",    "/picture.svg",                 neighbour_picture.picture,    "image/svg+xml"),
    Route("GET",    "/processes",                   processes,                    "text/html"),
    Route("GET",    "/processes/{pid}",             history_page.process,         "text/html"),
    Route("GET",    "/machines",                    page("machines"),             "text/html"),
    Route("GET",    "/machines/{name}",             machine,                      "text/html"),
    Route("GET",    "/devices",                     page("devices"),              "text/html"),
    Route("GET",    "/alerts",                      page("alerts"),               "text/html"),
    Route("POST",   "/alerts",                      silence,                      "text/html",
          "operator", "adds or ends a silence"),
    Route("GET",    "/about",                       page("about"),                "text/html"),
    Route("GET",    FIT_PAGE,                       fit_page.fit,                 "text/html"),
    Route("POST",   FIT_PAGE,                       fit_page.fit_config,          "text/html"),
    Route("GET",    "/incidents",                   incidents,                    "text/html"),
    Route("GET",    "/incidents/{incident_id}",     incident_files.page,          "text/html"),
    Route("GET",    "/incidents/{incident_id}/report.md", incident_files.report,  "text/plain"),
    Route("GET",    "/incidents/{incident_id}/picture.svg", incident_files.picture, "image/svg+xml"),
    Route("GET",    "/last-words",                  last_words,                   "text/html"),
    Route("GET",    "/runbooks",                    runbooks,                     "text/html"),
    Route("GET",    "/docs",                        docs,                         "text/html"),
    Route("GET",    LIVE,                           live,                         "text/event-stream"),
)
# fmt: on


def create_pages_app(services: PageServices) -> Starlette:
    """Create the application of the pages of one monitor."""
    return Starlette(
        routes=[*(_serve(route, services) for route in PAGES), *static_files.routes()],
        middleware=[Middleware(Compression)],
        exception_handlers=ErrorAnswer(services.monitor.simulated, services.pages.refused).handlers,
    )


def _serve(route: Route, services: PageServices) -> routing.Route:
    count = len(signature(route.handler).parameters)

    async def answer(request: Request) -> Response:
        if route.handler is not history_page.history:  # it shows its own page with the reason
            refuse_repeated(request.query_params)
        return await route.handler(*(services, request)[:count])

    return routing.Route(route.path, answer, methods=[route.method])
