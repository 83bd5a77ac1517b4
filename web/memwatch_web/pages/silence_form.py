"""POST /alerts: create a silence from the form, also without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from memwatch.alerts.rules import EVENTS
from memwatch.alerts.silences import MOST_SECONDS, SILENCES_MOST
from memwatch.notify.manager import TooMany
from memwatch_web.api.services import Services
from memwatch_web.asgi.access import who_asks
from memwatch_web.asgi.problems import Problem

HOUR_SECONDS = 3600.0
LEAST_HOURS, MOST_HOURS = 0.1, MOST_SECONDS / HOUR_SECONDS
MOST_REASON, MOST_TARGET, MOST_DIGITS = 500, 256, 12


class BadForm(ValueError):
    """An invalid form; the message names the valid values."""


class Wish(Struct, frozen=True):
    """A requested silence. `event` and `target` are None for all."""

    seconds: float
    event: str | None
    target: str | None
    reason: str


def wish_of(body: bytes) -> Wish:
    """Parse the form. Raises BadForm."""
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=10))
    except ValueError:
        raise BadForm("the body is not a UTF-8 form: send hours=8&reason=maintenance.") from None
    reason, event, target = (fields.get(name, "").strip() for name in ("reason", "event", "target"))
    if not 0 < len(reason) <= MOST_REASON:
        raise BadForm(f"reason has {len(reason)} characters: use 1 to {MOST_REASON} to explain the silence.")
    if event and event not in EVENTS:
        raise BadForm(f"event is {event[:80]!r}: use one of {', '.join(EVENTS)}, or leave it out.")
    if len(target) > MOST_TARGET:
        raise BadForm(f"target has {len(target)} characters: use {MOST_TARGET} at most, or leave it out.")
    return Wish(_hours(fields) * HOUR_SECONDS, event or None, target or None, reason)


def _hours(fields: Mapping[str, str]) -> float:
    text = fields.get("hours", "").strip()
    try:
        hours = float(text) if len(text) <= MOST_DIGITS else -1.0
    except ValueError:
        hours = -1.0
    if not LEAST_HOURS <= hours <= MOST_HOURS:
        raise BadForm(f"hours is {text[:20]!r}: use a number from {LEAST_HOURS:g} to {MOST_HOURS:g}, such as 8.")
    return hours


async def silence(services: Services, request: Request) -> Response:
    """Create the silence and redirect to the page."""
    try:
        wish = wish_of(await request.body())
        services.alerting.silence(wish.seconds, wish.event, wish.target, wish.reason, who_asks(request.scope))
    except BadForm as error:
        raise Problem(422, str(error)) from None
    except TooMany:
        raise Problem(409, f"there are already {SILENCES_MOST} silences: expire one first.") from None
    return RedirectResponse("alerts#silences", status_code=303)
