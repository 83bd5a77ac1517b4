"""GET /history: one window of the history as a page. The query is validated: it may be typed by hand."""

from __future__ import annotations

import gzip
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.monitor.loop import Monitor
from memwatch.snapshot import Snapshot
from memwatch_web.api.history import instant, parse_names
from memwatch_web.asgi.health import stalled_seconds
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.static_files import VARY, accepts_gzip
from memwatch_web.pages.annotations import most_telling
from memwatch_web.pages.charts import usual_series
from memwatch_web.pages.history_data import build_data
from memwatch_web.pages.history_query import HistoryInput, query_window
from memwatch_web.pages.history_view import HistoryQuery, HistoryView, RejectedQuery, build_view
from memwatch_web.pages.services import PageServices
from memwatch_web.pages.time_range import available_ranges, build_window, choose_range, find_range

# All that are kept (`events.MAX_EVENTS` and `events.MAX_MARKS`).
MAX_EVENTS = 1500
# 104 kB (a machine with eight GPUs) compress to 13 kB in 1 ms (November 2026).
GZIP_LEVEL = 5
# Time to render the page without any data.
PAGE_SECONDS = 0.003
# Series that the composition of a pool takes, in place of one.
SERIES_OF_A_POOL = 5


async def history(services: PageServices, request: Request) -> Response:
    snapshot, stalled = services.current(), stalled_seconds(services.monitor)
    past, zipped = build_input(services.monitor), accepts_gzip(request)
    query = try_query(past, request.query_params, snapshot)

    def work() -> bytes:
        shown = query if isinstance(query, RejectedQuery) else build_view(past, query, snapshot)
        body = services.pages.history(snapshot, shown, stalled)
        return gzip.compress(body, GZIP_LEVEL, mtime=0) if zipped else body

    key = ("page", str(request.query_params), snapshot.seq, stalled, zipped)
    body = await services.query(key, _estimate_seconds(past, query), work)
    headers = {"content-encoding": "gzip", "vary": VARY} if zipped else {}
    return HTMLResponse(body, 422 if isinstance(query, RejectedQuery) else 200, headers)


def _estimate_seconds(past: HistoryInput, query: HistoryQuery | RejectedQuery) -> float:
    """Return about how long the view takes: each series and, behind each chart, a level."""
    if isinstance(query, RejectedQuery):
        return 0.0
    window, start, end = query.window, query.window.start - past.to_wall, query.window.end - past.to_wall
    return PAGE_SECONDS + 2 * past.history.estimate_seconds(len(query.names), start, end, window.points)


async def history_data(services: PageServices, request: Request) -> Response:
    """Return one pool over a range, as data for the chart of the overview."""
    snapshot, past, zipped = services.current(), build_input(services.monitor), accepts_gzip(request)
    query = parse_pool_query(past, request.query_params, snapshot)

    def work() -> bytes:
        body = services.json_bytes(build_pool_data(past, query, snapshot))
        return gzip.compress(body, GZIP_LEVEL, mtime=0) if zipped else body

    key = ("data", str(request.query_params), snapshot.seq, zipped)
    body = await services.query(key, SERIES_OF_A_POOL * _estimate_seconds(past, query), work)
    headers = {"vary": "accept-encoding"} | ({"content-encoding": "gzip"} if zipped else {})
    return Response(body, 200, headers, media_type="application/json")


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


def build_pool_data(past: HistoryInput, query: HistoryQuery, snapshot: Snapshot) -> dict[str, Any]:
    """Return the data of one chart, the ranges, and the pools."""
    found = query_window(past, query.window, query.names, snapshot)
    return {
        **build_data(found, enumerate(most_telling(found.annotations), 1), snapshot),
        "range": query.window.range.name,
        "ranges": [[one.name, one.label] for one in available_ranges(past.tiers)],
        "pools": [[pool.id, pool.label] for pool in snapshot.pools],
    }


def build_input(monitor: Monitor) -> HistoryInput:
    return HistoryInput(
        monitor.series, monitor.to_wall(0.0), monitor.rules.tier_specs, monitor.events.latest(MAX_EVENTS)
    )


def build_answer(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryView | RejectedQuery:
    """Return the view, or the reason why the query is invalid."""
    parsed = try_query(past, query, snapshot)
    return parsed if isinstance(parsed, RejectedQuery) else build_view(past, parsed, snapshot)


def try_query(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryQuery | RejectedQuery:
    """Return the parsed query, or the reason why it is invalid."""
    try:
        return parse_query(past, query, snapshot)
    except ProblemError as problem:
        return RejectedQuery(str(problem.detail), available_ranges(past.tiers))


def parse_query(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryQuery:
    offered = available_ranges(past.tiers)
    covered = past.history.end - past.history.start if len(past.history) else 0.0
    wanted = find_range(query.get("range") or None, offered, choose_range(covered, offered))
    start, end = (_instant(name, query.get(name) or None) for name in ("from", "to"))
    window = build_window(wanted, start, end, snapshot.unix, past.tiers)
    chosen = [name for name in query.getlist("series") if name]
    if not chosen:
        return HistoryQuery(window, (), tuple(usual_series(past.history.names(), snapshot)))
    names = tuple(dict.fromkeys(parse_names(chosen, past.history)))
    return HistoryQuery(window, names, names)


def _instant(name: str, text: str | None) -> float | None:
    return None if text is None else instant(name, text, 0.0)
