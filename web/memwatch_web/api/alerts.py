"""REST endpoints for alerts, receivers, silences and test notifications."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from msgspec import Struct
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.silences import MAX_SECONDS, MAX_SILENCES, MIN_SECONDS
from memwatch_monitor.alerts.rules import EVENTS
from memwatch_monitor.notify.manager import SilenceLimitError
from memwatch_monitor.notify.status import ALERTS, alert_rows, receiver_rows
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.asgi.caller import caller_of
from memwatch_web.asgi.problems import ProblemError

Seconds = Annotated[
    float,
    Query(
        ge=MIN_SECONDS, le=MAX_SECONDS, allow_inf_nan=False, description="Duration of the silence.", examples=[3600]
    ),
]
Target = Annotated[str, Field(max_length=256)]


class AlertTest(Struct, frozen=True):
    receivers: tuple[str, ...]


async def alerts(services: ApiServices) -> Response:
    """Return firing and pending alerts."""
    sender = services.alerting.sender
    return services.json(ALERTS.encode_all(alert_rows(services.monitor), sender))


async def receivers(services: ApiServices) -> Response:
    """Return the notification receivers and their delivery status."""
    return services.json(ALERTS.encode_all(receiver_rows(services.alerting)))


async def silences(services: ApiServices) -> Response:
    """Return the silences."""
    return services.json(ALERTS.encode_all(services.alerting.silences(), services.monitor.latest))


async def test(services: ApiServices, request: Request) -> Response:
    """Send a test notification to every receiver. One that is still queued is retried at once instead."""
    if not services.alerting.receivers:
        raise ProblemError(409, "no receiver is configured; add [[alerts.webhooks]] to the configuration file.")
    if not services.test_turnstile.enter():
        raise ProblemError(
            429, "rate limit: one test notification per 5 s; retry in 5 s.", headers={"Retry-After": "5"}
        )
    try:
        names = services.alerting.test()
        services.record_test(names, caller_of(request.scope))
        return services.json(AlertTest(tuple(names)))
    finally:
        services.test_turnstile.leave()


async def silence(
    services: ApiServices,
    request: Request,
    seconds: Seconds,
    event: Annotated[str | None, Query(description="Event to silence; all events by default.")] = None,
    target: Annotated[Target | None, Query(description="Target to silence; all targets by default.")] = None,
    comment: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    """Mute notifications of matching alerts; return all silences. A `note` reports that the target does not exist
    now."""
    if event is not None and event not in EVENTS:
        raise ProblemError(422, f"event is {event[:80]!r}: use one of {', '.join(EVENTS)}, or leave it out.")
    try:
        services.silence(seconds, event, target, comment, caller_of(request.scope))
    except SilenceLimitError:
        raise ProblemError(409, f"the limit of {MAX_SILENCES} silences is reached; end one first.") from None
    return await silences(services)


async def end(services: ApiServices, request: Request, silence_id: str) -> Response:
    """End a silence early; return the others."""
    services.end_silence(silence_id, caller_of(request.scope))
    return await silences(services)
