"""Alerts, silences and receivers for display in the API and on pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import Struct, field
from msgspec.structs import asdict

from memwatch.core.events import Event
from memwatch.core.listing import some_of
from memwatch.core.silences import Silence, in_force, is_silenced
from memwatch.core.snapshot import Reason, Snapshot
from memwatch.core.wire import Json
from memwatch.monitor.alerts.naming import runbook_anchor
from memwatch.monitor.alerts.rules import EVENTS, LEVELS, RULES, SEVERITY, evaluate_rules, possible_targets
from memwatch.monitor.alerts.state import AlertState
from memwatch.monitor.loop import Monitor
from memwatch.monitor.notify.manager import NotificationManager
from memwatch.monitor.notify.outbox.delivery_log import Delivery
from memwatch.monitor.notify.sender import Sender
from memwatch.monitor.render.json import rfc3339, silence_json

LATEST_EVENTS = 20
SHOWN_DELIVERIES = 50
# Alerts, and changes to their delivery.
SHOWN_KINDS = frozenset({"alert", "silence", "test"})
NAMED_TARGETS = 20


class AlertRow(Struct, frozen=True):
    """A firing or pending alert. `fires_in_seconds`: of a pending one whose condition still holds then."""

    target: str
    rule: str
    severity: str
    state: str
    since_unix: float | None
    silenced: bool
    reasons: tuple[Reason, ...]
    fires_in_seconds: float | None = None

    @property
    def runbook(self) -> str | None:
        """Anchor of the alert's section on /runbooks."""
        return runbook_anchor(self.rule, self.target)


class RuleRow(Struct, frozen=True):
    """A rule. `receivers`: how many it is sent to. `ratio`: the usage from which its level applies by default."""

    name: str
    severity: str
    words: str
    receivers: int
    runbook: str | None
    ratio: float | None = None


class AlertGroup(Struct, frozen=True):
    """Alerts of one rule in one state."""

    rule: str
    severity: str
    state: str
    runbook: str | None
    alerts: tuple[AlertRow, ...]


class DeliveryRow(Struct, frozen=True):
    """Latest attempt to deliver a message to a receiver, as in the log, and the seconds until the next one."""

    receiver: str
    id: str
    rule: str
    target: str
    kind: str
    result: str
    attempts: int
    status: int | None
    failure: str
    unix: float | None
    next_attempt_seconds: float | None


class ReceiverRow(Struct, frozen=True):
    """State of one receiver."""

    name: str
    kind: str
    title: str
    events: tuple[str, ...]
    targets: tuple[str, ...]
    disabled: bool
    pending: int
    outcomes: dict[str, int]
    failure: str
    next_attempt_seconds: float | None
    last_delivered_unix: float | None
    deliveries: tuple[DeliveryRow, ...] = ()


class AlertView(Struct, frozen=True):
    """Alerts, silences, receivers and events at one time. `notes`: by silence id, that its target is missing."""

    alerts: Sequence[AlertRow] = ()
    silences: Sequence[Silence] = ()
    receivers: Sequence[ReceiverRow] = ()
    events: Sequence[Event] = ()
    durable: bool = False
    disk_errors: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)
    rules: Sequence[RuleRow] = ()

    @property
    def deliveries(self) -> list[DeliveryRow]:
        """Return the latest deliveries to all receivers: the queued ones, then the newest attempt first."""
        rows = [one for receiver in self.receivers for one in receiver.deliveries]
        return sorted(rows, key=lambda row: (row.unix is not None, -(row.unix or 0.0)))[:SHOWN_DELIVERIES]

    @property
    def groups(self) -> list[AlertGroup]:
        """Return the alerts grouped by state and rule: firing before pending, the most severe first."""
        rows = sorted(self.alerts, key=_urgency)
        grouped = groupby(rows, key=lambda row: (row.state, row.rule, row.severity, row.runbook))
        return [
            AlertGroup(rule, severity, state, runbook, tuple(members))
            for (state, rule, severity, runbook), members in grouped
        ]


SEVERITIES = ("critical", "warning", "info")


def _urgency(row: AlertRow) -> tuple[bool, int, str, str, float]:
    return row.state != "firing", SEVERITIES.index(row.severity), row.rule, row.runbook or "", row.since_unix or 0.0


def build_view(monitor: Monitor, alerting: NotificationManager) -> AlertView:
    silences = alerting.silences()
    notes = {one.id: note for one in silences if (note := build_note(one, monitor.latest))}
    return AlertView(
        alert_rows(monitor),
        silences,
        receiver_rows(alerting),
        [event for event in monitor.events.latest(200) if event.kind in SHOWN_KINDS][:LATEST_EVENTS],
        alerting.outbox.durable,
        alerting.outbox.errors,
        notes,
        rule_rows(monitor, alerting),
    )


def rule_rows(monitor: Monitor, alerting: NotificationManager) -> list[RuleRow]:
    thresholds = monitor.rules.pressure.thresholds
    return [
        RuleRow(
            rule.name,
            rule.severity,
            rule.words,
            sum(rule.name in one.subscription.events for one in alerting.receivers),
            runbook_anchor(rule.name, ""),
            getattr(thresholds, LEVELS[rule.name].word) if rule.name in LEVELS else None,
        )
        for rule in RULES
    ]


def count_firing(monitor: Monitor) -> int:
    """Return the number of firing alerts that are not silenced."""
    firing = [key for key, state in monitor.alert_states.items() if state.firing]
    silences = in_force(monitor.silences, monitor.moment().boottime) if firing else ()
    return sum(not is_silenced(silences, *key) for key in firing)


def pending_by_alert(monitor: Monitor) -> Mapping[tuple[str, str], float]:
    """Return the pending time of each condition, in seconds."""
    if monitor.latest is None:
        return {}
    conditions = evaluate_rules(monitor.latest, (), monitor.rules.alerts)
    return {(one.rule, one.target): one.pending_seconds for one in conditions}


def fires_in(state: AlertState, pending_seconds: float | None, now: float) -> float | None:
    if state.firing or state.since is None or pending_seconds is None:
        return None
    return max(0.0, pending_seconds - (now - state.since))


def alert_rows(monitor: Monitor) -> list[AlertRow]:
    moment = monitor.moment()
    silences = in_force(monitor.silences, moment.boottime)
    pending = pending_by_alert(monitor)
    return [
        AlertRow(
            target=target,
            rule=rule,
            severity=SEVERITY[rule],
            state="firing" if alert_state.firing else "pending",
            since_unix=alert_state.started_unix if alert_state.firing else None,
            silenced=is_silenced(silences, rule, target),
            reasons=alert_state.reasons,
            fires_in_seconds=fires_in(alert_state, pending.get((rule, target)), moment.monotonic),
        )
        for (rule, target), alert_state in monitor.alert_states.items()
        if is_shown(alert_state)
    ]


def is_shown(alert_state: AlertState) -> bool:
    return alert_state.firing or alert_state.pending


def receiver_rows(alerting: NotificationManager) -> list[ReceiverRow]:
    rows = []
    for receiver in alerting.receivers:
        status, wanted = receiver.status(), receiver.subscription
        rows.append(
            ReceiverRow(
                name=receiver.name,
                kind=receiver.channel.kind,
                title=receiver.channel.title,
                events=tuple(sorted(wanted.events)),
                targets=tuple(sorted(wanted.targets)),
                disabled=status.disabled,
                pending=receiver.pending(),
                outcomes=dict(receiver.counts()),
                failure=status.failure,
                next_attempt_seconds=status.next_attempt_seconds,
                last_delivered_unix=status.last_delivered_unix,
                deliveries=tuple(delivery_row(receiver.name, *one) for one in receiver.deliveries()),
            )
        )
    return rows


def delivery_row(receiver: str, delivery: Delivery, next_attempt_seconds: float | None) -> DeliveryRow:
    rule, _, rest = delivery.alert.partition(" ")
    return DeliveryRow(
        receiver=receiver,
        id=delivery.id,
        rule=rule,
        target=rest.partition(" ")[0],
        kind=delivery.kind,
        result=delivery.result,
        attempts=delivery.attempts,
        status=delivery.status,
        failure=delivery.failure,
        unix=delivery.unix,
        next_attempt_seconds=next_attempt_seconds,
    )


def alert_json(row: AlertRow, sender: Sender) -> Json:
    """Return an alert. `runbook` is a URL as in notifications; without an address of the pages, a path."""
    return {
        "target": row.target,
        "rule": row.rule,
        "severity": row.severity,
        "state": row.state,
        "since": None if row.since_unix is None else rfc3339(row.since_unix),
        "since_unix": row.since_unix,
        "silenced": row.silenced,
        "fires_in_seconds": row.fires_in_seconds,
        "runbook": sender.runbook_url(row.rule, row.target) or (row.runbook and f"/runbooks#{row.runbook}"),
        "reasons": [{"signal": why.signal, "text": why.text} for why in row.reasons],
    }


def build_note(silence: Silence, snapshot: Snapshot | None) -> str | None:
    """Return a note if a silence's target is missing: a GPU or container that comes later, or a typing error."""
    if silence.target is None or snapshot is None:
        return None
    here = possible_targets(snapshot, (silence.event,) if silence.event else EVENTS)
    if silence.target in here:
        return None
    those = some_of(here, NAMED_TARGETS) or "none"
    of_event = f" for {silence.event}" if silence.event else ""
    return f"no target {silence.target!r} at present{of_event}; present targets: {those}"


def noted_silence_json(silence: Silence, snapshot: Snapshot | None) -> Json:
    return {**silence_json(silence), "note": build_note(silence, snapshot)}


def receiver_json(row: ReceiverRow) -> Json:
    fields = {name: value for name, value in asdict(row).items() if name != "title"}
    return {**fields, "deliveries": [delivery_json(one) for one in row.deliveries]}


def delivery_json(row: DeliveryRow) -> Json:
    return {name: value for name, value in asdict(row).items() if name != "receiver"}
