"""GET /history: one window of the history as a page. The query is validated: it may be typed by hand."""

from __future__ import annotations

import gzip

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.monitor.loop import Monitor
from memwatch.snapshot import Snapshot
from memwatch_web.api.history import instant, parse_names
from memwatch_web.asgi.health import stalled_seconds
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.static_files import accepts_gzip
from memwatch_web.pages.charts import usual_series
from memwatch_web.pages.history_query import HistoryInput
from memwatch_web.pages.history_view import HistoryQuery, HistoryView, RejectedQuery, build_view
from memwatch_web.pages.services import PageServices
from memwatch_web.pages.time_range import available_ranges, build_window, find_range

# All that are kept (`events.MAX_EVENTS` and `events.MAX_MARKS`).
MAX_EVENTS = 1500
# 104 kB (a machine with eight GPUs) compress to 13 kB in 1 ms (November 2026).
GZIP_LEVEL = 5


async def history(services: PageServices, request: Request) -> Response:
    snapshot, monitor = services.current(), services.monitor
    shown = build_answer(build_input(monitor), request.query_params, snapshot)
    body = services.pages.history(snapshot, shown, stalled_seconds(monitor))
    headers = {"vary": "accept-encoding"}
    if accepts_gzip(request):
        body, headers["content-encoding"] = gzip.compress(body, GZIP_LEVEL, mtime=0), "gzip"
    return HTMLResponse(body, 422 if isinstance(shown, RejectedQuery) else 200, headers)


def build_input(monitor: Monitor) -> HistoryInput:
    return HistoryInput(
        monitor.history, monitor.to_wall(0.0), monitor.rules.tier_specs, monitor.events.latest(MAX_EVENTS)
    )


def build_answer(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryView | RejectedQuery:
    """Return the view, or the reason why the query is invalid."""
    try:
        return build_view(past, parse_query(past, query, snapshot), snapshot)
    except ProblemError as problem:
        return RejectedQuery(str(problem.detail), available_ranges(past.tiers))


def parse_query(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> HistoryQuery:
    wanted = find_range(query.get("range") or None, available_ranges(past.tiers))
    start, end = (_instant(name, query.get(name) or None) for name in ("from", "to"))
    window = build_window(wanted, start, end, snapshot.unix, past.tiers)
    known = past.history.names()
    chosen = [name for name in query.getlist("series") if name]
    if not chosen:
        return HistoryQuery(window, (), tuple(usual_series(known, snapshot)))
    names = tuple(dict.fromkeys(parse_names(chosen, known)))
    return HistoryQuery(window, names, names)


def _instant(name: str, text: str | None) -> float | None:
    return None if text is None else instant(name, text, 0.0)
