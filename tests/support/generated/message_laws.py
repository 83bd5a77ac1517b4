"""Laws of messages: none contradicts itself, in any channel. `level` is the alert's, `level_now` its target's."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.core.snapshot import Level, Snapshot
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import LEVELS
from memwatch_monitor.notify.alertmanager import alert_json
from memwatch_monitor.notify.channel import Sender, build_text, build_title
from memwatch_monitor.notify.webhook import body_json

SENDER = Sender()
WORDS: dict[Level | None, str | None] = {None: None, **{level: level.word for level in Level}}


def complaints_about_message(one: Notification, snapshot: Snapshot) -> Iterator[str]:
    """Yield one sentence for each contradiction in the message, as each channel renders it."""
    what, least = f"message: {one.event} of {one.target}", LEVELS.get(one.rule)
    if one.firing != (one.event == one.rule) or one.firing == one.event.endswith(".resolved"):
        yield f"{what}: its event is not that of an alert that {'fires' if one.firing else 'ended'}"
    if one.firing:
        if least is not None and (one.level is None or one.level < least):
            yield f"{what}: its level is {one.level!r}"
        if one.level is not None and one.level_now is not None and one.level_now > one.level:
            yield f"{what}: its target is {one.level_now!r}, and it says {one.level!r}"
    else:
        is_over = least is None or one.level is None or one.level < least
        if one.level != one.level_now or not (is_over or any(why.signal == "available" for why in one.reasons)):
            yield f"{what}: its level is {one.level!r}, {one.level_now!r} now, and no reason says why"
    yield from _complaints_about_channels(what, one, snapshot)


def _complaints_about_channels(what: str, one: Notification, snapshot: Snapshot) -> Iterator[str]:
    title, text = build_title(one, snapshot), build_text(one, snapshot, None)
    body, alert = body_json(one, snapshot, SENDER, 64), alert_json(one, snapshot, SENDER)
    if (body["level"], body["level_now"]) != (WORDS[one.level], WORDS[one.level_now]):
        yield f"{what}: its body has other levels: {body}"
    if (": resolved: " in title) == one.firing or ("endsAt" in alert) == one.firing:
        yield f"{what}: title {title!r} and alert {alert} do not agree"
    eased = f", now {one.level_now.label} (" if one.has_eased and one.level_now is not None else ""
    has_was = " was " in title and one.rule in LEVELS
    is_told_so = text.startswith("was ") == bool(eased) or not one.reasons
    if eased not in title or has_was != bool(eased) or not is_told_so:
        yield f"{what}: level now {one.level_now!r}, title {title!r}, text {text!r}"
    if alert["annotations"]["summary"] != title or alert["annotations"]["description"] != text:
        yield f"{what}: Alertmanager gets another text than other receivers"
