"""Health of the daemon: age of the latest snapshot, /healthz and /readyz."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.json import JSON_TYPE, answer_bytes
from memwatch_monitor.loop import Monitor
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.response import BytesResponse

STALLED_INTERVALS = 3.0
# At ten samples a second, a short pause of the machine is not a stalled daemon.
MIN_STALLED_SECONDS = 1.0


class Health(Struct, frozen=True):
    status: Literal["ok", "stalled", "starting"]
    age_seconds: Annotated[float | None, Doc("Age of the latest tick; null before the first one.")]


def current(monitor: Monitor) -> Snapshot:
    """Return the latest snapshot. Raises Problem before the first one."""
    if monitor.latest is None:
        raise ProblemError(503, "no data yet: retry in a second.", headers={"Retry-After": "1"})
    return monitor.latest


def stalled_seconds(monitor: Monitor) -> float | None:
    """Return the age of the latest snapshot if it exceeds three intervals (at least 1 s), else None."""
    age = monitor.age_seconds()
    allowed = max(STALLED_INTERVALS * monitor.rules.interval_seconds, MIN_STALLED_SECONDS)
    return age if age is not None and age > allowed else None


def health_response(monitor: Monitor) -> BytesResponse:
    age = monitor.age_seconds()
    fresh = age is not None and stalled_seconds(monitor) is None
    health = Health("ok" if fresh else "starting" if age is None else "stalled", age)
    body = answer_bytes(health, monitor.simulated)
    return BytesResponse(body, JSON_TYPE, 200 if fresh else 503)


def readiness_response(monitor: Monitor) -> BytesResponse:
    age = monitor.age_seconds()
    body = answer_bytes(Health("starting" if age is None else "ok", age), monitor.simulated)
    return BytesResponse(body, JSON_TYPE, 503 if age is None else 200)
