"""Title and text of a notification, for receivers that take plain text."""

from __future__ import annotations

from memwatch.core.listing import first_of
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.alerts.reasons import describe_news
from memwatch.monitor.alerts.rules import RULES
from memwatch.monitor.alerts.state import GROUPED, Notification
from memwatch.monitor.notify.sender import Sender
from memwatch.monitor.notify.webhook_payload import MAX_REASONS, cut, select_top
from memwatch.monitor.render.words import ratio, size

TEXT_LENGTH = 200
_WORDS = {rule.name: rule.words for rule in RULES}


def build_title(notification: Notification, snapshot: Snapshot) -> str:
    """Render the title, one line: "spark-1: memory is critical (System RAM)", with new reasons at the end.

    Of events that keep coming, with their number. Of an alert that only still fires:
    "spark-1: memory was critical, now OK (System RAM)".
    """
    where = snapshot.labels.get(notification.target, notification.target)
    words = _WORDS.get(notification.rule, "test notification")
    if notification.has_eased and notification.level_now is not None:
        words = f"{words.replace(' is ', ' was ', 1)}, now {notification.level_now.label}"
    more = "".join(f": {one.text}" for one in notification.reasons[:1] if one.signal == GROUPED)
    state = "" if notification.firing else "resolved: "
    again = "still firing: " if notification.repeated else ""
    return _clean(
        f"{snapshot.host}: {state}{again}{words} ({where}){more}{describe_news(notification.new_reasons)}"
    )


def build_text(notification: Notification, snapshot: Snapshot, sender: Sender | None) -> str:
    """Render the text, one line each: reasons of the alert's level, usage now, largest processes.

    With a `sender` also its labels, and the links to its dashboard and to the runbook.
    """
    then = f"was {notification.level.label}: " if notification.has_eased and notification.level is not None else ""
    ordered = sorted(notification.reasons, key=lambda one: one.signal != "ttf")  # the time left is first
    lines = [*first_of([f"{then}{reason.text}" for reason in ordered], MAX_REASONS, "reasons")]
    lines += [_figures(notification, snapshot), _holders(snapshot), *(_labels(sender) if sender else ())]
    lines = [_clean(line) for line in lines if line]
    runbook = sender.runbook_url(notification.rule, notification.target) if sender else None
    links = [runbook and f"Runbook: {runbook}", sender.url if sender else None]
    return "\n".join([*lines, *(link for link in links if link)])


def _labels(sender: Sender) -> list[str]:
    return [f"{name}: {value}" for name, value in sender.labels.items()]


def _figures(notification: Notification, snapshot: Snapshot) -> str:
    verdict = next((one for one in snapshot.pressure if one.target == notification.target), None)
    pool = next((one for one in snapshot.pools if one.id == notification.target), None)
    if verdict is None or pool is None or isinstance(pool.available_bytes, Absent):
        return f"{notification.target}: {ratio(verdict.ratio)} used" if verdict is not None else ""
    return f"{pool.label}: {ratio(verdict.ratio)} used, {size(pool.available_bytes)} available"


def _holders(snapshot: Snapshot) -> str:
    named = [
        f"{process.title} ({process.pid}) {size(process.footprint_bytes)}"
        for process in select_top(snapshot.processes)
        if not isinstance(process.footprint_bytes, Absent)
    ]
    return f"largest processes: {', '.join(named)}" if named else ""


def _clean(text: str) -> str:
    return cut(text, TEXT_LENGTH)
