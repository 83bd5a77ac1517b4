"""Notifications to receivers, silences, and persistence of both and of the alerts' state."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from memwatch.core.printable import printable
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.silences import MAX_SILENCES, Silence, current, in_force
from memwatch.core.snapshot import Reason, Snapshot
from memwatch.reporting.incidents.records import Incident, Told, ToldResult
from memwatch_monitor.alert_states import Alerts
from memwatch_monitor.alerts.notification import (
    INHIBITORS,
    Key,
    Notification,
    can_be_inhibited,
    is_inhibited,
    new_notification_id,
)
from memwatch_monitor.alerts.persistence import (
    Entry,
    StateDecodeError,
    decode_alert_states,
    decode_silences,
    encode_alert_states,
    encode_silences,
)
from memwatch_monitor.alerts.rules import FACTS, Condition
from memwatch_monitor.alerts.state import AlertState, active_alerts, build_notification
from memwatch_monitor.feature import Family, Feature, Tick
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.incidents.assemble import BEFORE_SECONDS
from memwatch_monitor.incidents.store import RECENT_SECONDS
from memwatch_monitor.loop import Monitor
from memwatch_monitor.notify.channel import Sender, cut
from memwatch_monitor.notify.outbox import NewMessage, Outbox
from memwatch_monitor.notify.queue import Delivery, Kind, ReceiverQueue
from memwatch_monitor.notify.receiver import Receiver, Subscription, close_all

log: logging.Logger = logging.getLogger(__name__)

ALERT_STATES, SILENCES = "watches", "silences"
TEST_RULE = "test"
# Events are grouped for a shorter time.
ENDED_SECONDS = 3600.0
# Fraction of the shutdown time given to receivers; the rest is for the disk.
RECEIVERS_PART = 0.75
MAX_TOLD = 16
# Results of deliveries that say whether a receiver got the alert. One that was superseded was never to arrive.
RESULTS: Mapping[str, ToldResult] = {
    "delivered": "delivered",
    "queued": "waiting",
    "retry": "waiting",
    "gave_up": "failed",
    "disabled": "failed",
}


class SilenceLimitError(Exception):
    """The limit of silences is reached."""


class NotificationManager(Feature):
    """Manager of receivers, outbox and silences. `recovered`: number of damaged files that were replaced."""

    name = "notifications"

    def __init__(
        self,
        monitor: Monitor,
        outbox: Outbox,
        receivers: Sequence[Receiver] = (),
        sender: Sender | None = None,
        recovered: int = 0,
    ) -> None:
        self.receivers: tuple[Receiver, ...] = tuple(receivers)
        self.outbox = outbox
        self.recovered = recovered
        self._monitor = monitor
        self._alerts = monitor.features.get(Alerts)
        self._incidents = monitor.features.get(IncidentObserver)
        self.sender: Sender = sender or Sender()
        self._new = deque(self.receivers)
        self._is_started = False
        # Saved entries that this version cannot read.
        self._unread_states: list[Entry] = []
        self._unread_silences: list[Entry] = []
        # Firing alerts that a receiver does not get because it got a stronger one, by receiver and key.
        self._inhibited: set[tuple[str, str]] = set()
        # The last end of each alert that may inhibit an event, for an hour.
        self._ended: dict[Key, Notification] = {}
        # Only memory and the disk have them: they are written at once.
        self._waiting_events: Mapping[Key, int] = {}
        self._written: tuple[Mapping[Key, AlertState], float, bytes] | None = None

    def restore(self) -> None:
        """Restore persisted alerts and silences. Call before the first tick."""
        if self._monitor.identity.simulated:
            return
        for name, restore in ((ALERT_STATES, self._restore_states), (SILENCES, self._restore_silences)):
            data = self.outbox.values.get(name)
            if data is None:
                continue
            try:
                restore(data)
            except StateDecodeError as error:
                kept = f"unread {name}"
                self.outbox.put((), {kept: data})
                log.warning("the saved %s cannot be read (%s); kept in the outbox as %r", name, error, kept)

    def _restore_states(self, data: bytes) -> None:
        moment, boot_id = self._monitor.moment(), self._monitor.identity.boot_id
        found = decode_alert_states(data, moment, boot_id, self._unread_states)
        rules = self._monitor.rules.alerts.events
        self._alerts.states = {key: state for key, state in found.items() if key[0] in rules}

    def _restore_silences(self, data: bytes) -> None:
        moment, boot_id = self._monitor.moment(), self._monitor.identity.boot_id
        self._use_silences(decode_silences(data, moment, boot_id, self._unread_silences))

    def start(self) -> None:
        self.outbox.start()
        self._is_started = True
        self._start_threads()

    def use(self, receivers: Sequence[Receiver]) -> None:
        """Replace the receivers.

        A removed receiver stops after its current attempt. Notifications queued for a removed name are dropped;
        those for a name that is still configured go to its new receiver.
        """
        gone = [one for one in self.receivers if one not in receivers]
        new = [one for one in receivers if one not in self.receivers]
        self.receivers = tuple(receivers)
        for one in gone:
            one.stop_soon()
        for name in {one.name for one in gone}.difference(one.name for one in receivers):
            self.drop(name)
        self._start_threads()
        self._new.extend(new)

    def _start_threads(self) -> None:
        """Start the threads that do not run. A tick and a reload may do so at the same time."""
        for one in self.receivers:
            one.start()

    def drop(self, name: str) -> None:
        """Drop the notifications queued for a receiver."""
        lost = self.outbox.forget(name)
        self._inhibited = {entry for entry in self._inhibited if entry[0] != name}
        level = logging.WARNING if lost else logging.INFO
        log.log(level, "receiver removed or changed: %s; notifications dropped: %d", name, lost)

    def on_tick(self, tick: Tick) -> None:  # noqa: ARG002  signature of Feature
        """Bring the records of recent incidents up to date: who was notified."""
        self._incidents.update_told(self._find_told)

    def _find_told(self, one: Incident) -> tuple[Told, ...]:
        found = ((each.name, [delivery for delivery, _ in each.deliveries()]) for each in self.receivers)
        return update_told(one, found)

    def on_publish(self, snapshot: Snapshot) -> None:
        self.deliver(snapshot, self._alerts.pending)
        self._alerts.pending = ()

    def deliver(self, snapshot: Snapshot, notifications: tuple[Notification, ...]) -> None:
        """Queue new notifications and save the alerts' state, in one transaction.

        A simulated machine sends no notifications and saves no state.
        """
        if snapshot.simulated:
            return
        if self._is_started:
            self._start_threads()
        self.outbox.retry_start()
        try:
            self._queue_notifications(snapshot, notifications)
        except MemoryError:
            self._monitor.self_usage.release_reserve()
            self._queue_notifications(snapshot, notifications)

    def test(self) -> list[str]:
        """Send a test notification to every receiver and return the receivers' names."""
        snapshot = self._monitor.latest
        if snapshot is not None:
            new_messages = self._build_messages(build_test_notification(), snapshot, self.receivers)
            self.outbox.put(new_messages, {})
        return [receiver.name for receiver in self.receivers]

    def failures(self) -> list[str]:
        found = [(one.channel.title, one.status().failure) for one in self.receivers]
        return [f"{title}: {failure}" for title, failure in found if failure]

    def families(self) -> Iterator[Family]:
        url = self.sender.url
        text = "Address of the pages for links in notifications; absent if other machines cannot reach them."
        yield Family("info", "web", text, [(url,)] if url else [], ("url",))
        receivers, label = self.receivers, ("receiver",)
        outcomes = [((one.name, outcome), count) for one in receivers for outcome, count in one.counts().items()]
        text = "Total notifications by outcome."
        yield Family("counter", "notifications", text, outcomes, (*label, "outcome"))
        pending = [((one.name,), one.pending()) for one in receivers]
        yield Family("gauge", "notifications_pending", "Number of undelivered notifications.", pending, label)
        text = "Time from an alert to the delivery of its notification in seconds."
        latencies = [((one.name,), one.latency) for one in receivers]
        yield Family("histogram", "notification_latency_seconds", text, latencies, label)
        durable = [((), int(self.outbox.durable))] if receivers else []
        text = "1 if undelivered notifications survive a restart, 0 if not."
        yield Family("gauge", "outbox_durable", text, durable)
        errors = [((), self.outbox.errors)] if receivers else []
        text = "Total failed writes of undelivered notifications to disk."
        yield Family("counter", "outbox_errors", text, errors)
        recovered = [((), self.recovered)] if receivers else []
        text = "Total unusable outbox files replaced, or loaded without their damaged rows."
        yield Family("counter", "outbox_recovered", text, recovered)
        latest = self._monitor.latest
        targets = [verdict.target for verdict in latest.pressure] if latest else []
        wanted = filter(None, (one.in_place_of_prometheus() for one in receivers))
        pushed = {row for subscription in wanted for row in pushed_alerts(subscription, targets)}
        text = "1 for alerts that a receiver of memwatchd gets in place of those of Prometheus's rules."
        yield Family("gauge", "alert_pushed", text, [(row, 1) for row in sorted(pushed)], ("event", "target"))

    def thread_states(self) -> dict[str, ThreadState]:
        """Return the state of every thread that delivers; empty without receivers."""
        states = {receiver.thread_name: receiver.thread_state() for receiver in self.receivers}
        return {"outbox": self.outbox.thread_state(), **states} if states else {}

    def silences(self) -> tuple[Silence, ...]:
        """Return the silences in force, with times by the current wall clock."""
        return current(self._monitor.publisher.silences, self._monitor.moment())

    def silence(
        self, seconds: float, event: str | None, target: str | None, comment: str, made_by: str = ""
    ) -> Silence:
        """Mute notifications of matching alerts for `seconds`. Raises SilenceLimitError."""
        now = self._monitor.moment()
        comment, made_by = printable(comment), printable(made_by)
        target = None if target is None else printable(target)
        if len(self.silences()) >= MAX_SILENCES:
            raise SilenceLimitError
        new_silence = Silence(
            id=f"sil_{secrets.token_hex(6)}",
            until_unix=now.wall + seconds,
            created_unix=now.wall,
            until_boottime=now.boottime + seconds,
            event=event,
            target=target,
            comment=comment,
            made_by=made_by,
        )
        self._use_silences((*self.silences(), new_silence))
        return new_silence

    def end_silence(self, silence_id: str) -> bool:
        """End a silence. Returns False if there is none with that id."""
        left = tuple(one for one in self.silences() if one.id != silence_id)
        found = len(left) < len(self.silences())
        self._use_silences(left)
        return found

    def close(self, timeout: float = 2.0) -> None:
        """Stop within `timeout` seconds. Undelivered notifications stay in the outbox."""
        if not self._monitor.simulated:
            self._use_silences(self.silences())  # by a wall clock that was set meanwhile, for the next boot
        close_all(self.receivers, timeout * RECEIVERS_PART)
        self.outbox.close(timeout * (1 - RECEIVERS_PART))
        for receiver in self.receivers:
            if receiver.pending():
                fate = "kept for the next start" if self.outbox.durable else "lost"
                title, pending = receiver.channel.title, receiver.pending()
                log.warning("%s: notifications not delivered: %d, %s", title, pending, fate)

    def _queue_notifications(self, snapshot: Snapshot, notifications: tuple[Notification, ...]) -> None:
        new = list(self._new)
        held = {name for name, _ in self._inhibited}
        missing = [*new, *(one for one in self.receivers if one.name in held and one not in new)]
        active = self._active_keys() if notifications or missing else ()
        new_messages = []
        for notification in notifications:
            wanting = [one for one in self.receivers if self._gets(one, notification, active)]
            new_messages += self._build_messages(notification, snapshot, wanting)
        new_messages += self._find_missed(snapshot, notifications, missing, active) if missing else []
        self._note_ends(notifications, snapshot.unix)
        state = self._encode_states(snapshot)
        if new_messages or self.outbox.values.get(ALERT_STATES) != state:
            waiting = waiting_events(self._alerts.states)
            is_urgent = bool(new_messages) or waiting != self._waiting_events
            self._waiting_events = waiting
            self.outbox.put(new_messages, {ALERT_STATES: state}, urgent=is_urgent)
        for _ in new:
            self._new.popleft()
        if new and self._is_silence_pending():
            self._new.extend(new)

    def _note_ends(self, notifications: Sequence[Notification], unix: float) -> None:
        new = {(one.rule, one.target): one for one in notifications if is_end(one) and one.rule in INHIBITORS}
        if new:
            kept = {key: end for key, end in self._ended.items() if unix - end.unix < ENDED_SECONDS}
            self._ended = kept | new

    def _encode_states(self, snapshot: Snapshot) -> bytes:
        """Serialize the alerts. The bytes are cached until an alert changes or the machine was suspended."""
        alert_states, moment = self._alerts.states, self._monitor.last_tick
        asleep = moment.asleep_seconds
        if self._written is None or self._written[0] is not alert_states or self._written[1] != asleep:
            encoded = encode_alert_states(alert_states, moment, snapshot.boot_id, self._unread_states)
            self._written = alert_states, asleep, encoded
        return self._written[2]

    def _find_missed(
        self,
        snapshot: Snapshot,
        notifications: Sequence[Notification],
        new: Sequence[Receiver],
        active: Collection[Key],
    ) -> list[tuple[ReceiverQueue, NewMessage]]:
        """Build notifications of firing alerts for receivers that are new or subscribe to more than before, and of
        those that a stronger alert inhibited until now, unless they are clearing.

        Alerts that a receiver got from an earlier run of the daemon are recorded in its box and left out.
        """
        new_messages = []
        levels = {one.target: one.level for one in snapshot.pressure}
        fresh = {notification.alert for notification in notifications if not notification.repeated}
        for (rule, target), alert_state in active_alerts(self._alerts.states, self._silences_at_tick()):
            level = levels.get(target) if rule.startswith("pressure.") else None
            notification = build_notification(
                alert_state, Condition(rule, target, True, level=level), snapshot.unix, new_notification_id()
            )
            is_clearing = alert_state.since is not None
            wanting = [
                one
                for one in new
                if not one.tracks(alert_key(notification)) and self._gets(one, notification, active, is_clearing)
            ]
            if notification.alert not in fresh:
                new_messages += self._build_messages(
                    notification, snapshot, [one for one in wanting if one in self.receivers]
                )
        return new_messages

    def _active_keys(self) -> Collection[Key]:
        return {key for key, _ in active_alerts(self._alerts.states, self._silences_at_tick())}

    def _gets(
        self,
        receiver: Receiver,
        notification: Notification,
        active: Collection[Key],
        is_clearing: bool = False,
    ) -> bool:
        """Return True if a receiver gets a notification: of several alerts about one incident the strongest.

        An alert that it does not get is remembered until it resolves, or is no longer inhibited. Its end is not
        sent either, also after a restart. `is_clearing`: it was left out, and its end is near.
        """
        wanted, rule, target = receiver.subscription, notification.rule, notification.target
        if not wanted.wants(notification):
            return False
        entry, is_tracked = (receiver.name, alert_key(notification)), receiver.tracks(alert_key(notification))
        has_stronger = can_be_inhibited(rule, target, wanted.covers)
        if is_end(notification):
            self._inhibited.discard(entry)
            return is_tracked or not has_stronger
        if notification.fact:  # it may be older: facts soon after a notification are grouped
            active = {*active, *(key for key, end in self._ended.items() if was_active(end, notification))}
        is_late = is_clearing and has_stronger
        if not is_late and not is_inhibited(rule, target, active, wanted.covers):
            self._inhibited.discard(entry)
            return True
        if not (notification.fact or is_tracked):
            self._inhibited.add(entry)
        return False

    def _is_silence_pending(self) -> bool:
        """Return True while a silence mutes alerts that new receivers have not been sent."""
        alert_states = self._alerts.states
        return len(active_alerts(alert_states, self._silences_at_tick())) < len(active_alerts(alert_states, ()))

    def _silences_at_tick(self) -> tuple[Silence, ...]:
        return in_force(self._monitor.publisher.silences, self._monitor.last_tick.boottime)

    def _build_messages(
        self, notification: Notification, snapshot: Snapshot, wanting: Sequence[Receiver]
    ) -> list[tuple[ReceiverQueue, NewMessage]]:
        """Render the notification for these receivers, once per kind of channel."""
        bodies: dict[str, bytes] = {}
        new_messages = []
        for receiver in wanting:
            channel = receiver.channel
            if channel.kind not in bodies:
                bodies[channel.kind] = channel.body(notification, snapshot, self._sender_of(notification))
            new_messages.append((receiver.queue, new_message(notification, bodies[channel.kind])))
        return new_messages

    def _sender_of(self, notification: Notification) -> Sender:
        """Return the sender, with the incident that the alert is about."""
        found = self._incidents.log.current_id(notification.target)
        return replace(self.sender, incident=found) if found else self.sender

    def _use_silences(self, silences: tuple[Silence, ...]) -> None:
        self._monitor.publisher.use_silences(silences, self._monitor.moment())
        encoded = encode_silences(silences, self._monitor.identity.boot_id, self._unread_silences)
        if self.outbox.values.get(SILENCES) != encoded:
            self.outbox.put((), {SILENCES: encoded})


def pushed_alerts(subscription: Subscription, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield events with their targets: pressure by target, for other events none. Prometheus's shipped rules do not
    repeat them.

    A receiver of some targets only does not get all of such an event. Prometheus's rules then report it, too.
    """
    for event in subscription.events:
        if event.startswith("pressure."):
            yield from ((event, target) for target in targets if subscription.covers(event, target))
        elif not subscription.targets:
            yield event, ""


def waiting_events(alert_states: Mapping[Key, AlertState]) -> Mapping[Key, int]:
    """Return the number of one-off events that wait for the next notification of their alert."""
    waiting = {key: state for key, state in alert_states.items() if key[0] in FACTS and state.pending}
    return {key: len(state.reasons) + state.left_out for key, state in waiting.items()}


def new_message(notification: Notification, body: bytes) -> NewMessage:
    is_changed = bool(notification.new_reasons)
    return NewMessage(notification.id, alert_key(notification), kind_of(notification), body, is_changed)


def alert_key(notification: Notification) -> str:
    """Return the key of the notification's alert in the outbox."""
    return cut(notification.alert, 300)


def is_end(notification: Notification) -> bool:
    return not (notification.firing or notification.fact)


def was_active(end: Notification, fact: Notification) -> bool:
    """Return True if the alert that ended was firing when the latest event of a fact happened."""
    return end.started_unix <= fact.started_unix <= end.unix


def kind_of(notification: Notification) -> Kind:
    if notification.rule == TEST_RULE:
        return Kind.TEST
    if notification.fact:
        return Kind.FACT
    return Kind.FIRING if notification.firing else Kind.RESOLVED


def build_test_notification() -> Notification:
    """Build a test notification."""
    return Notification(
        id=new_notification_id(),
        event="test",
        unix=time.time(),
        target="test",
        level=None,
        previous=None,
        reasons=(Reason("test", "This is a test notification."),),
        firing=True,
        rule=TEST_RULE,
        severity="info",
        fact=True,
    )


# Deliveries of the alerts about an incident, for its record. Pure functions.


def update_told(one: Incident, receivers: Iterable[tuple[str, Sequence[Delivery]]]) -> tuple[Told, ...]:
    """Return the deliveries of an incident's record, brought up to date. `receivers`: names with their deliveries,
    newest first. A receiver that is gone keeps what is recorded. Of more than MAX_TOLD the first ones stay, so that
    a second call changes nothing."""
    found = {(told.receiver, told.rule): told for told in one.told or ()}
    for name, deliveries in receivers:
        for told in reversed(list(_list_told(one, name, deliveries))):
            found[told.receiver, told.rule] = told
    return tuple(found.values())[:MAX_TOLD]


def _list_told(one: Incident, receiver: str, deliveries: Iterable[Delivery]) -> Iterator[Told]:
    for delivery in deliveries:
        rule, _, rest = delivery.alert.partition(" ")
        is_about = rest.partition(" ")[0] == one.target and delivery.kind in ("firing", "fact")
        if is_about and delivery.result in RESULTS and _is_within(one, delivery.unix):
            yield Told(receiver, rule, delivery.unix, RESULTS[delivery.result], delivery.failure)


def _is_within(one: Incident, unix: float | None) -> bool:
    if unix is None:
        return one.ended is None
    return one.began - BEFORE_SECONDS <= unix <= (unix if one.ended is None else one.ended + RECENT_SECONDS)
