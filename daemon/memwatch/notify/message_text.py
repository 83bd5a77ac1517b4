"""Title and text of a notification, for receivers that take plain text."""

from __future__ import annotations

from memwatch.alerts.rules import RULES
from memwatch.alerts.state import Notification
from memwatch.model import Absent
from memwatch.notify.webhook_payload import MAX_REASONS, cut, select_top
from memwatch.render.words import ratio, size
from memwatch.snapshot import Snapshot

TEXT_LENGTH = 200
_WORDS = {rule.name: rule.words for rule in RULES}


def build_title(notification: Notification, snapshot: Snapshot) -> str:
    """Render the title, one line: "spark-1: memory is critical (System RAM)"."""
    where = snapshot.labels.get(notification.target, notification.target)
    words = _WORDS.get(notification.rule, "test notification")
    state = "" if notification.firing else "resolved: "
    again = "still firing: " if notification.repeated else ""
    return _clean(f"{snapshot.host}: {state}{again}{words} ({where})")


def build_text(notification: Notification, snapshot: Snapshot, dashboard_url: str | None) -> str:
    """Render the text, one line each: reasons, usage, largest processes, link to the dashboard."""
    lines = [reason.text for reason in notification.reasons[:MAX_REASONS]]
    lines += [line for line in (_figures(notification, snapshot), _holders(snapshot)) if line]
    lines = [_clean(line) for line in lines]
    return "\n".join([*lines, dashboard_url] if dashboard_url else lines)


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
