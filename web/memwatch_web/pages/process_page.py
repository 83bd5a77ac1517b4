"""GET /processes/PID: one process, with its footprint over time if that is recorded."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.model import Absent, Process
from memwatch.core.snapshot import Snapshot
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
from memwatch_web.asgi.latest_snapshot import RenderCache, stalled_seconds
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.sse import Gzip, Identity, SharedDeflate, sse
from memwatch_web.asgi.static_files import accepts_gzip
from memwatch_web.pages.history_data import build_input
from memwatch_web.pages.history_page import PAGE_SECONDS, estimate_seconds, parse_window, send_page
from memwatch_web.pages.history_view import HistoryQuery, build_view
from memwatch_web.pages.processes import ProcessView, find_process
from memwatch_web.pages.renderer import PROCESS, PageServices

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
    score = Absent.NOT_AVAILABLE if listed is None or simulated else services.inquiries.oom_score(listed)
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
