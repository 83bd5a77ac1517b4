"""POST /alerts: create a silence from the form, or end one, also without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from memwatch.core.silences import MAX_SECONDS, MAX_SILENCES
from memwatch.monitor.alerts.rules import EVENTS
from memwatch.monitor.notify.manager import SilenceLimitError
from memwatch_web.api.services import Services
from memwatch_web.asgi.caller import caller_of
from memwatch_web.asgi.problems import ProblemError

HOUR_SECONDS = 3600.0
MIN_HOURS, MAX_HOURS = 0.1, MAX_SECONDS / HOUR_SECONDS
MAX_REASON_LENGTH, MAX_TARGET_LENGTH, MAX_DIGITS = 500, 256, 12


class FormError(ValueError):
    """An invalid form; the message names the valid values."""


class SilenceRequest(Struct, frozen=True):
    """A requested silence. `event` and `target` are None for all."""

    seconds: float
    event: str | None
    target: str | None
    reason: str


def parse_silence_form(body: bytes) -> SilenceRequest:
    """Parse the form. Raises FormError."""
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=10))
    except ValueError:
        raise FormError("the body is not a UTF-8 form: send hours=8&reason=maintenance.") from None
    reason, event, target = (fields.get(name, "").strip() for name in ("reason", "event", "target"))
    if not 0 < len(reason) <= MAX_REASON_LENGTH:
        raise FormError(
            f"reason has {len(reason)} characters: use 1 to {MAX_REASON_LENGTH} to explain the silence."
        )
    if event and event not in EVENTS:
        raise FormError(f"event is {event[:80]!r}: use one of {', '.join(EVENTS)}, or leave it out.")
    if len(target) > MAX_TARGET_LENGTH:
        raise FormError(f"target has {len(target)} characters: use {MAX_TARGET_LENGTH} at most, or leave it out.")
    return SilenceRequest(_hours(fields) * HOUR_SECONDS, event or None, target or None, reason)


def _hours(fields: Mapping[str, str]) -> float:
    text = fields.get("hours", "").strip()
    try:
        hours = float(text) if len(text) <= MAX_DIGITS else -1.0
    except ValueError:
        hours = -1.0
    if not MIN_HOURS <= hours <= MAX_HOURS:
        raise FormError(f"hours is {text[:20]!r}: use a number from {MIN_HOURS:g} to {MAX_HOURS:g}, such as 8.")
    return hours


async def silence(services: Services, request: Request) -> Response:
    """Create the silence, or end the one that `end` in the query names, and redirect to the page."""
    ended = request.query_params.get("end")
    if ended is not None:
        services.end_silence(ended, caller_of(request.scope))
        return RedirectResponse("alerts#silences", status_code=303)
    try:
        wish = parse_silence_form(await request.body())
        services.silence(wish.seconds, wish.event, wish.target, wish.reason, caller_of(request.scope))
    except FormError as error:
        raise ProblemError(422, str(error)) from None
    except SilenceLimitError:
        raise ProblemError(409, f"there are already {MAX_SILENCES} silences: expire one first.") from None
    return RedirectResponse("alerts#silences", status_code=303)
