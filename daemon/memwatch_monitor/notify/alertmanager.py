"""Alertmanager as a receiver: POST to /api/v2/alerts, repeated while alerts fire because it expires them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Json, rfc3339, to_bytes
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import alert_name, target_labels
from memwatch_monitor.notify.channel import Reminder, Sender, build_text, build_title, cut
from memwatch_monitor.notify.http_post import Endpoint, Poster, PostResult, WallClock

PATH = "/api/v2/alerts"
HEADERS = {"Content-Type": "application/json"}
LABEL_LENGTH = 256
TIMES = ("startsAt", "endsAt")
# Smaller clock differences are ignored: the Date header has whole seconds.
SAME_CLOCK_SECONDS = 5.0


class AlertmanagerChannel:
    """Client of Alertmanager's API. It drops a firing alert 5 minutes after its last update.

    It rejects alerts whose start is more than that in the future and treats those with a future end as firing. If
    our clock is or was ahead, times later than now by Alertmanager's clock are sent as now (measured with 0.25).
    """

    kind = "alertmanager"

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        poster: Poster,
        repeat_seconds: float = 60.0,
        wall: WallClock = time.time,
        authorization: str | None = None,
    ) -> None:
        self.title: str = f"alertmanager {name} ({endpoint.origin})"
        self.reminder: Reminder | None = Reminder(repeat_seconds, self._send_again)
        self._poster = poster
        self._wall = wall
        self._headers = HEADERS if authorization is None else {**HEADERS, "Authorization": authorization}
        self._ahead_seconds = 0.0

    def prepare(self) -> None:
        self._poster.prepare()

    def body(self, notification: Notification, snapshot: Snapshot, sender: Sender) -> bytes:
        return to_bytes([alert_json(notification, snapshot, sender)])

    def send(self, message_id: str, body: bytes) -> PostResult:  # noqa: ARG002  labels identify an alert
        return self._post(body)

    def _send_again(self, bodies: Sequence[bytes]) -> PostResult:
        return self._post(b"[" + b",".join(body[1:-1] for body in bodies) + b"]")

    def _post(self, body: bytes) -> PostResult:
        """Post the alerts. Post again if the response shows a clock difference that changes their times."""
        sent, assumed = self._by_its_clock(body), self._ahead_seconds
        answer = self._poster.post(self._headers, sent)
        if answer.unix is None:
            return answer
        ahead = self._wall() - answer.unix
        self._ahead_seconds = ahead if abs(ahead) > SAME_CLOCK_SECONDS else 0.0
        changed = abs(self._ahead_seconds - assumed) > SAME_CLOCK_SECONDS
        again = self._by_its_clock(body) if changed else sent
        return answer if again == sent else self._poster.post(self._headers, again)

    def _by_its_clock(self, body: bytes) -> bytes:
        return not_later(body, self._wall() - self._ahead_seconds)

    def abort(self) -> None:
        self._poster.abort()


def alerts_endpoint(base: Endpoint) -> Endpoint:
    """Return the endpoint of the API from the URL of Alertmanager."""
    return base if base.path.endswith(PATH) else replace(base, path=base.path.rstrip("/") + PATH)


def alert_json(notification: Notification, snapshot: Snapshot, sender: Sender) -> Json:
    """Render one alert. Its labels, which identify it, are the same when it fires and when it resolves.

    They are also those of the same alert in Prometheus's shipped rules: Alertmanager then joins the two.

    A one-off event has no `endsAt`: Alertmanager ends it `resolve_timeout` after it arrives. An explicit end could
    be in the past if the event arrives late, and Alertmanager does not notify about ended alerts.
    """
    started, rule, target = notification.started_unix or notification.unix, notification.rule, notification.target
    annotations = {
        "summary": build_title(notification, snapshot),
        "description": build_text(notification, snapshot, None),
    }
    if runbook_url := sender.runbook_url(rule, target):
        annotations["runbook_url"] = runbook_url
    if sender.incident_url:
        annotations["incident_url"] = sender.incident_url
    alert: dict[str, Any] = {
        "labels": labels_json(notification, snapshot, sender),
        "annotations": annotations,
        "startsAt": rfc3339(started),
    }
    if not notification.firing:
        # Alertmanager rejects an end before the start, which a clock that was set back would cause.
        alert["endsAt"] = rfc3339(max(notification.unix, started + 0.001))
    if sender.url:
        alert["generatorURL"] = sender.url
    return alert


def labels_json(notification: Notification, snapshot: Snapshot, sender: Sender) -> dict[str, str]:
    rule, target = notification.rule, cut(notification.target, LABEL_LENGTH)
    return {
        **sender.labels,
        "alertname": alert_name(rule, target),
        "instance": cut(sender.instance or snapshot.host, LABEL_LENGTH),
        "job": sender.job,
        "severity": notification.severity,
        **target_labels(rule, target, notification.fact),
    }


def not_later(body: bytes, unix: float) -> bytes:
    """Return the alerts with their times limited to `unix`."""
    latest, alerts = rfc3339(unix), json.loads(body)
    late = [(alert, name) for alert in alerts for name in TIMES if alert.get(name, "") > latest]
    for alert, name in late:
        alert[name] = latest
    return to_bytes(alerts) if late else body
