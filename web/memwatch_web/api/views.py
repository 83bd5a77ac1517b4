"""REST endpoints without parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.lease_book import LeaseBook
from memwatch.monitor.loop import Monitor
from memwatch.monitor.neighbours.tick import encode_tick
from memwatch.monitor.notify.status import ALERTS, alert_rows, receiver_rows
from memwatch.monitor.render import json as as_json
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.routes import Handler
from memwatch_web.asgi.sse import Identity, sse
from memwatch_web.asgi.threads import A, NotCompletedError, SingleFlight, T


def part(render: Callable[[Snapshot], Any]) -> Handler:
    """Build the handler that returns a part of the latest snapshot."""

    async def show(services: ApiServices) -> Response:
        return services.respond_with(render)

    show.__name__ = render.__name__.removesuffix("_json")
    return show


async def backends(services: ApiServices) -> Response:
    """Return the available compute backends (CPU, CUDA, ROCm, Metal, OpenCL, Vulkan), and why others are not
    available. Probed at most once a minute."""
    refuse_simulated(services.monitor)
    return services.json(
        as_json.backends_json(await _await_answer(services.inquiries.backends, services.current()))
    )


async def doctor(services: ApiServices) -> Response:
    """Diagnose missing data: what is not visible, why, and how to change that."""
    refuse_simulated(services.monitor)
    return services.json(
        as_json.examination_json(await _await_answer(services.inquiries.doctor, services.current()))
    )


def refuse_simulated(monitor: Monitor) -> None:
    if monitor.simulated:
        raise ProblemError(
            404, "not available for demo data: a simulated machine has no libraries and device files."
        )


async def _await_answer(inquiry: SingleFlight[A, T], about: A) -> T:
    try:
        return await inquiry.ask(about)
    except NotCompletedError as error:
        raise ProblemError(503, f"{error}.", headers={"Retry-After": "60"}) from None


async def alerts(services: ApiServices) -> Response:
    """Return firing and pending alerts."""
    sender = services.alerting.sender()
    return services.json(ALERTS.encode_all(alert_rows(services.monitor), sender))


async def receivers(services: ApiServices) -> Response:
    """Return the notification receivers and their delivery status."""
    return services.json(ALERTS.encode_all(receiver_rows(services.alerting)))


async def silences(services: ApiServices) -> Response:
    """Return the silences."""
    return services.json(ALERTS.encode_all(services.alerting.silences(), services.monitor.latest))


async def leases(services: ApiServices) -> Response:
    """Return the leases in force, oldest first."""
    return services.json(as_json.leases_json(services.monitor.features.get(LeaseBook).current()))


async def compact_stream(services: ApiServices, request: Request) -> Response:
    """Stream compact ticks, with which other machines follow this one."""
    ticks = services.caches.get("compact", lambda _, now: sse("tick", encode_tick(services.own_tick(now))))
    return services.stream(request, Identity(ticks.plain))
