"""REST for alerts: what fires, who is told, silences, and a message to try it with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from memwatch.alerts.rules import EVENTS
from memwatch.alerts.silences import LEAST_SECONDS, MOST_SECONDS, SILENCES_MOST
from memwatch.monitor.loop import Monitor
from memwatch.notify.manager import Alerting, TooMany
from memwatch.notify.status import alert_json, alert_rows, receiver_json, receiver_rows, silence_json
from memwatch_web.api.snapshot import json_response
from memwatch_web.asgi.access import who_asks
from memwatch_web.asgi.problems import Problem

Seconds = Annotated[
    float,
    Query(ge=LEAST_SECONDS, le=MOST_SECONDS, allow_inf_nan=False, description="For how long.", examples=[3600]),
]


def create_alert_router(monitor: Monitor, alerting: Alerting) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["alerts"])
    _add_alerts(router, monitor, alerting)
    _add_silences(router, monitor, alerting)
    return router


def _add_alerts(router: APIRouter, monitor: Monitor, alerting: Alerting) -> None:
    @router.get("/alerts")
    async def alerts() -> Response:
        """Alerts that fire or are about to."""
        return json_response([alert_json(row) for row in alert_rows(monitor)], monitor)

    @router.get("/receivers")
    async def receivers() -> Response:
        """Who is told of alerts, and how that goes."""
        return json_response([receiver_json(row) for row in receiver_rows(alerting)], monitor)

    @router.post("/alerts/test")
    async def test() -> Response:
        """Send every receiver a message that says that nothing is wrong."""
        if not alerting.receivers:
            raise Problem(409, "no receiver is configured; add [[alerts.webhooks]] to the configuration file.")
        return json_response({"receivers": alerting.test()}, monitor)


def _add_silences(router: APIRouter, monitor: Monitor, alerting: Alerting) -> None:
    def answer() -> Response:
        return json_response([silence_json(one, monitor.latest) for one in alerting.silences()], monitor)

    @router.get("/silences")
    async def silences() -> Response:
        """Of what nobody is told, and until when."""
        return answer()

    @router.post("/silences")
    async def silence(
        request: Request,
        seconds: Seconds,
        event: Annotated[str | None, Query(description="Which alerts; all of them if not given.")] = None,
        target: Annotated[
            str | None, Query(max_length=256, description="About what; anything if not given.")
        ] = None,
        comment: Annotated[str, Query(max_length=500)] = "",
    ) -> Response:
        """Tell nobody of such alerts for so long; answers with all silences. A `note` says that a target is not
        here."""
        if event is not None and event not in EVENTS:
            raise Problem(422, f"event is {event[:80]!r}: use one of {', '.join(EVENTS)}, or leave it out.")
        try:
            alerting.silence(seconds, event, target, comment, who_asks(request.scope))
        except TooMany:
            raise Problem(409, f"there are {SILENCES_MOST} silences already; end one first.") from None
        return answer()

    @router.delete("/silences/{silence_id}")
    async def end(silence_id: str) -> Response:
        """End a silence before its time; answers with those that are left."""
        if not alerting.end_silence(silence_id):
            raise Problem(404, f"there is no silence {silence_id[:80]!r}; /api/v1/silences lists those that are.")
        return answer()
