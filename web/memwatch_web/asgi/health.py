"""Whether the daemon lives: what it saw last, how old that is, and the two answers that others judge it by."""

from __future__ import annotations

from starlette.responses import Response

from memwatch.monitor.loop import Monitor
from memwatch.render.json import JSON_TYPE, answer_bytes
from memwatch.snapshot import Snapshot
from memwatch_web.asgi.problems import Problem

STALLED_INTERVALS = 3.0
# Ten ticks a second do not make a machine that paused for a moment one whose daemon hangs.
STALLED_LEAST_SECONDS = 1.0


def current(monitor: Monitor) -> Snapshot:
    """The latest snapshot. Raises Problem before the first."""
    if monitor.latest is None:
        raise Problem(503, "nothing has been read yet; ask again in a second.", headers={"Retry-After": "1"})
    return monitor.latest


def stalled_seconds(monitor: Monitor) -> float | None:
    """How old the latest snapshot is, where more than three intervals and a second: then the loop does not tick."""
    age = monitor.age_seconds()
    allowed = max(STALLED_INTERVALS * monitor.rules.interval_seconds, STALLED_LEAST_SECONDS)
    return age if age is not None and age > allowed else None


def health_of(monitor: Monitor) -> Response:
    age = monitor.age_seconds()
    fresh = age is not None and stalled_seconds(monitor) is None
    status = "ok" if fresh else "starting" if age is None else "stalled"
    body = answer_bytes({"status": status, "age_seconds": age}, monitor.simulated)
    return Response(body, status_code=200 if fresh else 503, media_type=JSON_TYPE)


def readiness_of(monitor: Monitor) -> Response:
    age = monitor.age_seconds()
    body = answer_bytes({"status": "starting" if age is None else "ok", "age_seconds": age}, monitor.simulated)
    return Response(body, status_code=503 if age is None else 200, media_type=JSON_TYPE)
