"""GET /machines/NAME: the last two minutes and the last hour of a neighbour."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from memwatch.monitor.history.disk.last_run import Sample
from memwatch.monitor.neighbours.machines import Machine
from memwatch.monitor.neighbours.neighbour import HOUR_STEP_SECONDS
from memwatch.monitor.neighbours.tick import Tick
from memwatch_web.pages.last_run_chart import RATIO_OF, LastRunChart, Line, build_line
from memwatch_web.pages.services import PageServices

MAX_ROWS = 120


class MachinePage(Struct, frozen=True):
    """A neighbour, charts of its last minutes and hour, and its last ticks, newest first."""

    machine: Machine
    recent: LastRunChart | None
    hour: LastRunChart | None
    ticks: Sequence[Tick]


async def machine(services: PageServices, request: Request) -> Response:
    """Show one neighbour."""
    name = request.path_params["name"]
    found, past = services.machine(name), services.neighbours.past(name)
    recent, hour = (past.recent, past.hour) if past else ((), ())
    view = MachinePage(found, draw(recent, 1.0), draw(hour, HOUR_STEP_SECONDS), list(recent)[: -MAX_ROWS - 1 : -1])
    return HTMLResponse(services.pages.machine(services.current(), view))


def draw(ticks: Sequence[Tick], step_seconds: float) -> LastRunChart | None:
    """Draw the use of each pool. None for fewer than two ticks. Longer than 2.5 steps without one is a gap."""
    if len(ticks) < 2:
        return None
    samples = [Sample(one.unix, one.unix / step_seconds, measure_use(one)) for one in ticks]
    lines = [build_line(pool.label, RATIO_OF.format(pool.id), samples) for pool in ticks[-1].pools]
    known: tuple[Line, ...] = tuple(line for line in lines if line)
    return LastRunChart(ticks[0].unix, ticks[-1].unix, known, ()) if known else None


def measure_use(tick: Tick) -> dict[str, float]:
    return {
        RATIO_OF.format(pool.id): pool.used / pool.size
        for pool in tick.pools
        if pool.used is not None and pool.size
    }
