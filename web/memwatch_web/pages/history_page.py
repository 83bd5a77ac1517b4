"""GET /history: one window of the history as a page. The query is validated: it may be typed by hand."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Hashable

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.words import timestamp
from memwatch_web.api.history_parameters import MAX_SERIES, instant, parse_names
from memwatch_web.asgi.latest_snapshot import stalled_seconds
from memwatch_web.asgi.problems import ProblemError, refuse_repeated
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
from memwatch_web.pages.renderer import PageServices

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
