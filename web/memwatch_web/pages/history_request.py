"""Requests for a window of the history: parse it, estimate its time, and send the page."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Hashable

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history_recorder import HistoryRecorder
from memwatch.monitor.loop import Monitor
from memwatch_web.api.history_parameters import instant
from memwatch_web.asgi.problems import refuse_repeated
from memwatch_web.asgi.static_files import VARY, accepts_gzip
from memwatch_web.pages.history_query import HistoryInput
from memwatch_web.pages.history_view import HistoryQuery
from memwatch_web.pages.services import PageServices
from memwatch_web.pages.time_range import TimeWindow, available_ranges, build_window, choose_range, find_range

# All that are kept (`events.MAX_EVENTS` and `events.MAX_MARKS`).
MAX_EVENTS = 1500
# 259 kB (eight GPUs, an hour) compress to 30 kB in 3 ms (November 2026).
GZIP_LEVEL = 6
# Time to render the page without any data.
PAGE_SECONDS = 0.003


def build_input(monitor: Monitor) -> HistoryInput:
    return HistoryInput(
        monitor.features.get(HistoryRecorder).series,
        monitor.to_wall(0.0),
        monitor.rules.tier_specs,
        monitor.events.latest(MAX_EVENTS),
    )


def parse_window(past: HistoryInput, query: QueryParams, snapshot: Snapshot) -> TimeWindow:
    """Parse `range`, `from` and `to`. Raises ProblemError."""
    refuse_repeated(query, lists=("series",))
    offered = available_ranges(past.tiers)
    covered = past.history.end - past.history.start if len(past.history) else 0.0
    wanted = find_range(query.get("range") or None, offered, choose_range(covered, offered))
    start, end = (_instant(name, query.get(name) or None) for name in ("from", "to"))
    return build_window(wanted, start, end, snapshot.unix, past.tiers)


def estimate_seconds(past: HistoryInput, query: HistoryQuery) -> float:
    """Return about how long the view takes: each series and, behind each chart, a level."""
    window, start, end = query.window, query.window.start - past.to_wall, query.window.end - past.to_wall
    return PAGE_SECONDS + 2 * past.history.estimate_seconds(len(query.names), start, end, window.points)


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
