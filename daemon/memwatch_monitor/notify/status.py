"""Alerts, silences and receivers for display in the API and on pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.core.doc import Doc
from memwatch.core.events import Event
from memwatch.core.listing import some_of
from memwatch.core.silences import Silence, in_force, is_silenced
from memwatch.core.snapshot import Reason, Snapshot
from memwatch.core.wire import Shape, Wire, rfc3339
from memwatch.reporting.answers import SEVERITIES, AlertRow
from memwatch.reporting.render.json import SILENCE
from memwatch_monitor.alert_states import Alerts
from memwatch_monitor.alerts.rules import (
    EVENTS,
    LEVELS,
    RULES,
    SEVERITY,
    AlertRules,
    evaluate_rules,
    find_runbook,
    possible_targets,
)
from memwatch_monitor.alerts.state import AlertState, find_end
from memwatch_monitor.loop import Monitor
from memwatch_monitor.notify.channel import Sender
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.queue import Delivery

LATEST_EVENTS = 20
SHOWN_DELIVERIES = 50
# Alerts, and changes to their delivery.
SHOWN_KINDS = frozenset({"alert", "silence", "test"})
NAMED_TARGETS = 20


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
    id: Annotated[str, Doc("`webhook-id` of the notification.")]
    rule: str
    target: str
    kind: Annotated[str, Doc(values=("firing", "resolved", "fact", "test"))]
    result: Annotated[str, Doc(values=("queued", "delivered", "retry", "gave_up", "disabled", "superseded"))]
    attempts: Annotated[int, Doc("Since memwatchd started.")]
    status: Annotated[int | None, Doc("HTTP status; null without a response.")]
    failure: Annotated[str, Doc("Error of the last attempt; empty if it succeeded.")]
    unix: Annotated[float | None, Doc("End of the last attempt; null before the first one.")]
    next_attempt_seconds: Annotated[float | None, Doc("Null for one that does not wait.")]


class ReceiverRow(Struct, frozen=True):
    """State of one receiver."""

    name: str
    kind: Annotated[
        str,
        Doc(
            examples=(
                "webhook",
                "alertmanager",
                "apprise",
            )
        ),
    ]
    title: str
    events: tuple[str, ...]
    targets: Annotated[tuple[str, ...], Doc("Empty: all targets.")]
    disabled: Annotated[bool, Doc("True after a 410 response: nothing is sent until a restart.")]
    pending: int
    outcomes: dict[str, int]
    failure: Annotated[str, Doc("Error of the last attempt; empty if it succeeded.")]
    next_attempt_seconds: Annotated[float | None, Doc("Null if no notification waits.")]
    last_delivered_unix: Annotated[float | None, Doc("Null before the first delivery of this run.")]
    deliveries: Annotated[
        tuple[DeliveryRow, ...], Doc("Up to 10 queued ones, then the last attempts of 50 messages, newest first.")
    ] = ()


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
        grouped = groupby(rows, key=lambda row: (row.state, row.rule, row.severity, name_runbook(row)))
        return [
            AlertGroup(rule, severity, state, runbook, tuple(members))
            for (state, rule, severity, runbook), members in grouped
        ]


def _urgency(row: AlertRow) -> tuple[bool, int, str, str, float]:
    runbook = name_runbook(row) or ""
    return row.state != "firing", SEVERITIES.index(row.severity), row.rule, runbook, row.since_unix or 0.0


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
            find_runbook(rule.name, ""),
            getattr(thresholds, LEVELS[rule.name].word) if rule.name in LEVELS else None,
        )
        for rule in RULES
    ]


def count_firing(monitor: Monitor) -> int:
    """Return the number of firing alerts that are not silenced."""
    firing = [key for key, state in monitor.features.get(Alerts).states.items() if state.firing]
    silences = in_force(monitor.publisher.silences, monitor.moment().boottime) if firing else ()
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


def clear_times(state: AlertState, has_data: bool, moment: Moment, rules: AlertRules) -> dict[str, float]:
    """Return since when the condition of a firing alert is clear, and when it resolves: empty while it holds."""
    if not state.firing or state.since is None:
        return {}
    to_unix = moment.wall - moment.monotonic
    end = {"resolves_unix": to_unix + find_end(state, state.since, rules)} if has_data else {}
    return {"clear_since_unix": to_unix + state.since, **end}


def alert_rows(monitor: Monitor) -> list[AlertRow]:
    moment = monitor.moment()
    silences = in_force(monitor.publisher.silences, moment.boottime)
    pending, rules = pending_by_alert(monitor), monitor.rules.alerts
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
            **clear_times(alert_state, (rule, target) in pending, moment, rules),
        )
        for (rule, target), alert_state in monitor.features.get(Alerts).states.items()
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


def since(row: AlertRow, _: Sender) -> Annotated[str | None, Doc("Start of firing; null while pending.")]:
    return None if row.since_unix is None else rfc3339(row.since_unix)


def runbook(
    row: AlertRow, sender: Sender
) -> Annotated[
    str | None,
    Doc(
        "Section of the runbooks: a URL, or a path if no address of the pages is known; "
        "null for a rule without one.",
        examples=("http://gpu1.example.org:6360/runbooks#memorycritical",),
    ),
]:
    section = name_runbook(row)
    return sender.runbook_url(row.rule, row.target) or (section and f"/runbooks#{section.lower()}")


def name_runbook(row: AlertRow) -> str | None:
    """Return the name of the alert's section of the runbooks."""
    return find_runbook(row.rule, row.target)


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


def note(
    silence: Silence, snapshot: Snapshot | None
) -> Annotated[str | None, Doc("If the target does not exist now: the existing ones; null if it does.")]:
    return build_note(silence, snapshot)


# Answers about alerts: the level of a reason is not among them.
ALERTS = Wire(
    (
        Shape(
            AlertRow,
            "Alert",
            further=(since, runbook),
            order=("target", "rule", "severity", "state", "since", "since_unix", "silenced", "fires_in_seconds",
                   "clear_since_unix", "resolves_unix", "runbook", ...),
        ),
        Shape(Reason, "PressureReason", without=("level",)),
        Shape(DeliveryRow, "Delivery", without=("receiver",)),
        Shape(ReceiverRow, "Receiver", without=("title",)),
        replace(SILENCE, name="Silence", further=(*SILENCE.further, note)),
    )
)  # fmt: skip


# Notification of the state that a page shows: to which receivers it went, or would go.


class Receipt(Struct, frozen=True):
    """A receiver. `state`: of the newest notification about the level; "idle" before one is sent.

    `reason`: of a failure, empty otherwise.
    """

    name: str
    state: Literal["delivered", "failed", "queued", "idle"]
    reason: str = ""


class Notified(Struct, frozen=True):
    """Receivers of the alerts about a level. `firing`: one of them fires. `unix`: the last delivery of it.

    `has_receivers`: any receiver exists, although none may be among `receipts`.
    """

    firing: bool
    unix: float | None
    receipts: tuple[Receipt, ...]
    has_receivers: bool


def find_notified(view: AlertView, target: str | None) -> Notified:
    """Return where alerts about the level of a target go, and which of the firing ones arrived."""
    rules = {
        one.rule for one in view.alerts if one.target == target and one.rule in LEVELS and one.state == "firing"
    }
    getting = [one for one in view.receivers if _gets(one, target, rules)]
    newest = [_find_newest(one.deliveries, target, rules) for one in getting]
    receipts = [_build_receipt(one, last) for one, last in zip(getting, newest, strict=True)]
    arrived = [last.unix for last in newest if last and last.result == "delivered" and last.unix is not None]
    return Notified(bool(rules), max(arrived, default=None), tuple(receipts), bool(view.receivers))


def _gets(receiver: ReceiverRow, target: str | None, rules: Iterable[str]) -> bool:
    wanted = set(rules) or set(LEVELS)
    return bool(wanted.intersection(receiver.events)) and (not receiver.targets or target in receiver.targets)


def _find_newest(deliveries: Iterable[DeliveryRow], target: str | None, rules: Iterable[str]) -> DeliveryRow | None:
    """Return the newest firing notification: the queued ones come first, then the last attempts."""
    wanted = set(rules)
    mine = (one for one in deliveries if one.kind == "firing" and one.target == target and one.rule in wanted)
    return next(mine, None)


def _build_receipt(receiver: ReceiverRow, last: DeliveryRow | None) -> Receipt:
    if receiver.disabled:
        return Receipt(receiver.name, "failed", "disabled")
    if last is None:
        return Receipt(receiver.name, "idle")
    if last.result == "delivered":
        return Receipt(receiver.name, "delivered")
    return Receipt(receiver.name, "failed" if last.failure else "queued", last.failure)
