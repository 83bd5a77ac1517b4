"""GET /history: one window of the history as a page. The query is validated: it may be typed by hand.

GET /processes/PID: one process, with its footprint over time if that is recorded.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Hashable

from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.core.model import Absent, Process
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.words import timestamp
from memwatch_monitor.history.holders import (
    FIGURES,
    FOOTPRINTS,
    is_same_process,
    parse_name,
    process_id,
    series_name,
)
from memwatch_monitor.history.series import AllSeries
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_web.api.history_parameters import MAX_SERIES, instant, parse_names
from memwatch_web.asgi.latest_snapshot import RenderCache, stalled_seconds
from memwatch_web.asgi.problems import ProblemError, refuse_repeated
from memwatch_web.asgi.sse import Gzip, Identity, SharedDeflate, sse
from memwatch_web.asgi.static_files import VARY, accepts_gzip
from memwatch_web.pages.charts import usual_series
from memwatch_web.pages.history_data import (
    HistoryInput,
    TimeWindow,
    available_ranges,
    build_input,
    build_window,
    choose_range,
    find_range,
)
from memwatch_web.pages.history_view import HistoryQuery, HistoryView, RejectedQuery, build_view
from memwatch_web.pages.processes import ProcessView, find_process
from memwatch_web.pages.renderer import PROCESS, PageServices

# 259 kB (eight GPUs, an hour) compress to 30 kB in 3 ms (November 2026).
GZIP_LEVEL = 6
# Time to render the page without any data.
PAGE_SECONDS = 0.003
# Series that the composition of a pool takes, in place of one.
SERIES_OF_A_POOL = 5


def parse_window(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> TimeWindow:
    """Parse `range`, `from` and `to`, or `at`, the moment in the middle of the range. Raises ProblemError."""
    refuse_repeated(query, lists=("series",))
    offered = available_ranges(past.tiers)
    covered = past.history.end - past.history.start if len(past.history) else 0.0
    wanted = find_range(query.get("range") or None, offered, choose_range(covered, offered))
    start, end, at = (_instant(name, query.get(name) or None) for name in ("from", "to", "at"))
    if at is not None:
        _refuse_moment(at, start, end, snapshot.unix)
        start, end = at - wanted.seconds / 2, min(at + wanted.seconds / 2, snapshot.unix)
    return build_window(wanted, start, end, snapshot.unix, past.tiers)


def _refuse_moment(at: float, start: float | None, end: float | None, now: float) -> None:
    if start is not None or end is not None:
        raise ProblemError(422, "at is a moment, from and to are a range: use one of both.")
    if at > now:
        raise ProblemError(422, f"at is {timestamp(at)}, which is in the future: it is {timestamp(now)} now.")


def estimate_seconds(past: HistoryInput, query: HistoryQuery) -> float:
    """Return about how long the view takes: each series, a level behind it, and the composition of each pool."""
    window, start, end = query.window, query.window.start - past.to_wall, query.window.end - past.to_wall
    pools = sum(name.startswith("pool.") and name.endswith(".used_bytes") for name in query.names)
    series = 2 * len(query.names) + (SERIES_OF_A_POOL - 1) * pools
    return PAGE_SECONDS + past.history.estimate_seconds(series, start, end, window.points)


async def send_page(
    services: PageServices,
    request: Request,
    key: tuple[Hashable, ...],
    seconds: float,
    render: Callable[[], bytes],
    status: int = 200,
) -> Response:
    """Render a page that takes about `seconds`; requests with one key share it."""
    zipped = accepts_gzip(request)

    def work() -> bytes:
        return gzip.compress(render(), GZIP_LEVEL, mtime=0) if zipped else render()

    body = await services.query((*key, zipped), seconds, work)
    headers = {"content-encoding": "gzip", "vary": VARY} if zipped else {}
    return HTMLResponse(body, status, headers)


def _instant(name: str, text: str | None) -> float | None:
    return None if text is None else instant(name, text, 0.0)


async def history(services: PageServices, request: Request) -> Response:
    snapshot, stalled = services.current(), stalled_seconds(services.monitor)
    past = build_input(services.monitor)
    query = try_query(past, request.query_params, snapshot)

    def render() -> bytes:
        return services.pages.history(snapshot, build_answer(past, query, snapshot), stalled)

    key = ("page", str(request.query_params), snapshot.seq, stalled)
    seconds = 0.0 if isinstance(query, RejectedQuery) else estimate_seconds(past, query)
    status = 422 if isinstance(query, RejectedQuery) else 200
    return await send_page(services, request, key, seconds, render, status)


async def history_picture(services: PageServices, request: Request) -> Response:
    """Return the use of one pool over a range as a picture, for browsers without JavaScript."""
    snapshot, past = services.current(), build_input(services.monitor)
    query = parse_pool_query(past, request.query_params, snapshot)

    def work() -> bytes:
        return services.pages.picture(build_view(past, query, snapshot).charts[0])

    key = ("picture", str(request.query_params), snapshot.seq)
    body = await services.query(key, estimate_seconds(past, query), work)
    return Response(body, media_type="image/svg+xml")


def parse_pool_query(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryQuery:
    """Parse `pool` and `range`. Raises ProblemError."""
    pools = [pool.id for pool in snapshot.pools]
    wanted = query.get("pool") or (pools[0] if pools else "")
    if wanted not in pools:
        raise ProblemError(
            422, f"pool is {wanted[:80]!r}: use one of {', '.join(pools) or 'none: no pool is known'}."
        )
    offered = available_ranges(past.tiers)
    window = build_window(find_range(query.get("range") or None, offered), None, None, snapshot.unix, past.tiers)
    names = (f"pool.{wanted}.used_bytes",)
    return HistoryQuery(window, names, names)


def build_answer(
    past: HistoryInput, query: HistoryQuery | RejectedQuery, snapshot: Snapshot
) -> HistoryView | RejectedQuery:
    """Return the view, or the reason why the query is invalid."""
    return query if isinstance(query, RejectedQuery) else build_view(past, query, snapshot)


def try_query(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryQuery | RejectedQuery:
    """Return the parsed query, or the reason why it is invalid."""
    try:
        return parse_query(past, query, snapshot)
    except ProblemError as problem:
        return RejectedQuery(str(problem.detail), available_ranges(past.tiers))


def parse_query(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryQuery:
    window = parse_window(past, query, snapshot)
    chosen = [name for name in query.getlist("series") if name]
    if not chosen:
        usual = usual_series(past.history.names(), snapshot)
        return HistoryQuery(window, (), tuple(usual[:MAX_SERIES]), left_out=len(usual[MAX_SERIES:]))
    names = tuple(dict.fromkeys(parse_names(chosen, past.history)))
    return HistoryQuery(window, names, names)


MAX_PID = (1 << 31) - 1
MAX_DIGITS = len(str(MAX_PID))


def parse_pid(text: str) -> int:
    """Parse a process id. Raises ProblemError."""
    pid = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else 0
    if not 1 <= pid <= MAX_PID:
        raise ProblemError(422, f"pid is {text[:80]!r}: use a number from 1 to {MAX_PID}.")
    return pid


async def process(services: PageServices, request: Request) -> Response:
    """Show one process: its parts, its footprint over time, its allocators and owner."""
    pid = parse_pid(request.path_params["pid"])
    snapshot, stalled = services.current(), stalled_seconds(services.monitor)
    view = view_process(services, snapshot, pid)
    past = replace(build_input(services.monitor), tiers=services.monitor.rules.tier_specs[1:])
    query = HistoryQuery(
        parse_window(past, request.query_params, snapshot), (), find_series(past.history, view.process), str(pid)
    )

    def render() -> bytes:
        shown = build_view(past, query, snapshot) if query.names else None
        return services.pages.process(snapshot, view, shown, stalled)

    seconds = estimate_seconds(past, query) if query.names else PAGE_SECONDS
    key = (PROCESS, pid, str(request.query_params), snapshot.seq, stalled)
    return await send_page(services, request, key, seconds, render)


def find_series(past: AllSeries, process: Process) -> tuple[str, ...]:
    """Return the recorded series of exactly this process, not of another one that had its id."""
    own, known = process_id(process), set(past.names())
    names = [past.find(series_name("process", str(process.pid), figure)) for figure in FIGURES]
    parsed = [(name, parse_name(name)) for name in names if name in known]
    return tuple(name for name, parts in parsed if own and parts and is_same_process(own, parts[1]))


def view_process(services: PageServices, snapshot: Snapshot, pid: int) -> ProcessView:
    """Return the view of a process. Raises ProblemError if nothing is known of it."""
    listed = find_process(snapshot, pid)
    simulated = services.monitor.simulated
    score = Absent.NOT_AVAILABLE if listed is None or simulated else services.oom_score(listed)
    view = services.pages.view_process(snapshot, pid, services.monitor.to_wall(0.0), score)
    if view is None:
        raise ProblemError(404, f"process {pid} is not on this machine, and was not listed in the last hour.")
    recorder = services.monitor.features.get(HistoryRecorder)
    return replace(view, series=find_owner_series(recorder.series, view.process))


def find_owner_series(past: AllSeries, process: Process) -> dict[str, str]:
    """Return the recorded footprint of the unit and the container of a process, by kind."""
    known = set(past.names())
    names = [
        (kind, series_name(kind, owner, figure))
        for kind, owner in (("unit", process.unit), ("container", process.container))
        for figure in FOOTPRINTS
        if isinstance(owner, str)
    ]
    return {kind: name for kind, name in names if name in known}


def stream_process(services: PageServices, request: Request, pid: int) -> Response:
    """Stream the page of one process. Each client has a cache: it is unlikely that two watch the same one."""
    last = view_process(services, services.current(), pid)

    def render(snapshot: Snapshot) -> bytes:
        try:
            view = view_process(services, snapshot, pid)
        except ProblemError:
            view = replace(last, ended=True)
        recorded = bool(find_series(services.monitor.features.get(HistoryRecorder).series, view.process))
        return sse(PROCESS, services.pages.process_fragment(snapshot, view, recorded))

    cache = RenderCache(render)
    return services.stream(Gzip(SharedDeflate(cache)) if accepts_gzip(request) else Identity(cache.plain))
