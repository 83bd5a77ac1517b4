"""Alerts in the loop: the states of all alerts, and the notifications that were not delivered to the outbox yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from memwatch.core.events import Event
from memwatch.core.silences import in_force
from memwatch_monitor.alerts.notification import Key, Notification, describe_news, new_notification_id
from memwatch_monitor.alerts.rules import CRITICAL, ENOUGH, EVENT_KINDS, SEVERITY, collector_states, evaluate_rules
from memwatch_monitor.alerts.state import AlertState, step
from memwatch_monitor.feature import Family, Feature, Tick
from memwatch_monitor.loop import Monitor


class Alerts(Feature):
    """States of the alerts. `pending` notifications stay until they are taken, also if that fails at first."""

    name = "alerts"

    def __init__(self, monitor: Monitor) -> None:
        self.states: Mapping[Key, AlertState] = {}
        self.pending: tuple[Notification, ...] = ()
        self._monitor = monitor
        self._events_seen = 0

    def is_urgent(self) -> bool:
        return bool(self.pending)

    def skip_events(self) -> None:
        """Leave the events of earlier runs out."""
        self._events_seen = self._monitor.events.last_seq

    def firing(self, wanted: str) -> set[str]:
        """Return the targets of the firing alerts of a rule."""
        return {target for (rule, target), state in self.states.items() if rule == wanted and state.firing}

    def on_tick(self, tick: Tick) -> None:
        now, snapshot, rules, seen = tick.now, tick.snapshot, tick.rules.alerts, self._monitor.events.last_seq
        silences = self._monitor.publisher.silences
        conditions = evaluate_rules(snapshot, self._new_events(), rules)
        states, notifications = step(
            self.states,
            conditions,
            now.monotonic,
            now.wall,
            rules,
            new_notification_id,
            in_force(silences, now.boottime) if silences else (),
            collector_states(snapshot),
        )
        self.states, self.pending, self._events_seen = states, (*self.pending, *notifications), seen
        for one in notifications:
            label = snapshot.labels.get(one.target, one.target)
            self._monitor.record("alert", describe_alert(one, label), one.target, snapshot.unix)

    def _new_events(self) -> list[Event]:
        """Return the events since the last tick that alert rules use."""
        if self._monitor.events.last_seq == self._events_seen:
            return []
        return [event for event in self._monitor.events.since(self._events_seen) if event.kind in EVENT_KINDS]

    def families(self) -> Iterator[Family]:
        firing = Counter({CRITICAL: 0})
        firing.update(rule for (rule, _), state in self.states.items() if state.firing)
        rows = [((rule, SEVERITY[rule]), count) for rule, count in firing.items()]
        yield Family("gauge", "alerts_firing", "Number of firing alerts.", rows, ("rule", "severity"))


def describe_alert(notification: Notification, label: str) -> str:
    """Return the text of an event about an alert of a target with this label."""
    word = "still firing" if notification.repeated else "firing" if notification.firing else "resolved"
    level, now = notification.level, notification.level_now
    if level is not None:
        eased = "" if now is None or (notification.firing and now == level) else f" (now {now.label})"
        if not notification.firing:
            rule = "critical" if notification.rule == CRITICAL else notification.rule
            why = "".join(f": {one.text}" for one in notification.reasons if one.signal == ENOUGH)
            return f"alert {word}: {label} {rule}{eased}{why}"
        rule = "" if notification.rule == CRITICAL else f" ({notification.rule})"
        return f"alert {word}: {label} {level.label}{rule}{eased}{describe_news(notification.new_reasons)}"
    why = "; ".join(reason.text for reason in notification.reasons) or notification.target
    return f"alert {word}: {notification.rule} ({why})"
