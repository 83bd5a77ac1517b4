"""GET /history: one window of the history as a page. The query is validated: it may be typed by hand."""

from __future__ import annotations

import gzip

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.monitor.loop import Monitor
from memwatch.snapshot import Snapshot
from memwatch_web.api.history import instant, names_of
from memwatch_web.asgi.health import stalled_seconds
from memwatch_web.asgi.problems import Problem
from memwatch_web.asgi.static_files import accepts_gzip
from memwatch_web.pages.charts import usual_series
from memwatch_web.pages.history_query import Past
from memwatch_web.pages.history_view import Asked, Refused, View, view_of
from memwatch_web.pages.services import PageServices
from memwatch_web.pages.time_range import range_of, ranges_of, window_of

# All that are kept (`events.KEPT_EVENTS` and `events.KEPT_MARKS`).
MOST_EVENTS = 1500
# 104 kB (a machine with eight GPUs) compress to 13 kB in 1 ms (November 2026).
GZIP_LEVEL = 5


async def history(services: PageServices, request: Request) -> Response:
    snapshot, monitor = services.current(), services.monitor
    shown = answer_of(past_of(monitor), request.query_params, snapshot)
    body = services.pages.history(snapshot, shown, stalled_seconds(monitor))
    headers = {"vary": "accept-encoding"}
    if accepts_gzip(request):
        body, headers["content-encoding"] = gzip.compress(body, GZIP_LEVEL, mtime=0), "gzip"
    return HTMLResponse(body, 422 if isinstance(shown, Refused) else 200, headers)


def past_of(monitor: Monitor) -> Past:
    return Past(monitor.history, monitor.to_wall(0.0), monitor.rules.lengths, monitor.events.latest(MOST_EVENTS))


def answer_of(past: Past, query: QueryParams, snapshot: Snapshot) -> View | Refused:
    """Return the view, or the reason why the query is invalid."""
    try:
        return view_of(past, asked_of(past, query, snapshot), snapshot)
    except Problem as problem:
        return Refused(str(problem.detail), ranges_of(past.tiers))


def asked_of(past: Past, query: QueryParams, snapshot: Snapshot) -> Asked:
    wanted = range_of(query.get("range") or None, ranges_of(past.tiers))
    start, end = (_instant(name, query.get(name) or None) for name in ("from", "to"))
    window = window_of(wanted, start, end, snapshot.unix, past.tiers)
    known = past.history.names()
    chosen = [name for name in query.getlist("series") if name]
    if not chosen:
        return Asked(window, (), tuple(usual_series(known, snapshot)))
    names = tuple(dict.fromkeys(names_of(chosen, known)))
    return Asked(window, names, names)


def _instant(name: str, text: str | None) -> float | None:
    return None if text is None else instant(name, text, 0.0)
