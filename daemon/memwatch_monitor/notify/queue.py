"""Queue of the notifications for one receiver. Pure data structure without locks or clocks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch_monitor.feature import Histogram

MAX_WAITING = 1000


class Outcome(str, Enum):
    """Result of a message or of one delivery attempt."""

    DELIVERED = "delivered"  # the receiver answered 2xx
    RETRY = "retry"  # the attempt failed; another one will follow
    GAVE_UP = "gave_up"  # the last attempt of the schedule failed, or the queue was full
    DISABLED = "disabled"  # the receiver answered 410 and gets no more messages
    SUPERSEDED = "superseded"  # made obsolete by another message before it was delivered


class Kind(str, Enum):
    """Kind of a message: an alert fires, an alert resolved, a one-off event, or a test of the receiver."""

    FIRING = "firing"
    RESOLVED = "resolved"
    FACT = "fact"
    TEST = "test"


# A full queue drops messages of these kinds, in this order, the oldest of each kind first.
DROP_ORDER = (Kind.TEST, Kind.FACT, Kind.FIRING, Kind.RESOLVED)
ABOUT_ALERTS = frozenset({Kind.FIRING, Kind.RESOLVED})


class Message(Struct, eq=False):
    """A notification for one receiver. `due`: monotonic seconds; `attempts`: number of failed ones.

    `queued_at`: monotonic seconds; None for a message of an earlier run. `changed`: it has reasons that no earlier
    message about its alert has.
    `seq` orders messages and is their key on disk. Messages about one `alert` are delivered in order.
    """

    seq: int
    id: str
    alert: str
    kind: Kind
    body: bytes
    attempts: int = 0
    due: float = 0.0
    in_flight: bool = False
    queued_at: float | None = None
    changed: bool = False

    @property
    def firing(self) -> bool:
        return self.kind is Kind.FIRING


# Result of a message that waits for its first attempt.
QUEUED = "queued"
# Number of those that are listed.
MAX_QUEUED = 10


class DeliveredState(Struct, frozen=True):
    """Delivery state of a firing alert. `may_have_arrived`: the receiver got, or may have got, the notification in
    `body`."""

    may_have_arrived: bool
    body: bytes = b""


class QueueChanges(Struct):
    """Keys of entries that differ from the disk. Their content is looked up when it is written."""

    messages: set[int] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)


MAX_DELIVERIES = 50


class Delivery(Struct, frozen=True):
    """Last attempt to deliver a message.

    `seq`, `id`, `alert`, `kind`: those of the message. `result`: an outcome. `attempts`: number since memwatchd
    started. `status`: HTTP status, None without a response. `failure`: empty after a success. `unix`: end of the
    attempt, None before the first one.
    """

    seq: int
    id: str
    alert: str
    kind: str
    result: str
    attempts: int
    status: int | None = None
    failure: str = ""
    unix: float | None = None


class DeliveryLog:
    """The last attempt of each of the `max_deliveries` messages that were attempted last."""

    def __init__(self, max_deliveries: int = MAX_DELIVERIES) -> None:
        self._max_deliveries = max_deliveries
        self._by_seq: dict[int, Delivery] = {}

    def record(self, delivery: Delivery) -> None:
        """Add an attempt in place of an earlier one of the same message."""
        self._by_seq.pop(delivery.seq, None)
        self._by_seq[delivery.seq] = delivery
        if len(self._by_seq) > self._max_deliveries:
            del self._by_seq[next(iter(self._by_seq))]

    def end(self, seq: int, result: str) -> None:
        """Set the result of a message that gets no further attempt. Does nothing for one without an attempt."""
        if seq in self._by_seq:
            self._by_seq[seq] = replace(self._by_seq[seq], result=result)

    def find(self, seq: int) -> Delivery | None:
        return self._by_seq.get(seq)

    def latest(self) -> list[Delivery]:
        """Return the deliveries, the latest attempt first."""
        return list(reversed(self._by_seq.values()))


class Queue:
    """Messages in order. Only the first message of each alert can be due, so messages do not overtake each other.

    If an alert resolves before its firing notification was delivered, both are dropped. After a firing notification
    was delivered, or may have been (the connection broke after the request was sent, or the daemon ended before the
    result was saved), the resolved notification is sent. One without a firing one in this queue is also sent:
    another run may have sent it.

    A full queue drops tests, then one-off events, then messages about an alert that have a newer one behind them.
    The newest message about an alert is never dropped. So a queue exceeds `max_messages` if more alerts than that
    wait: by at most one message for each rule and target, the one that is being sent, and the one added last.
    At most one test is queued.
    """

    def __init__(self, max_messages: int = MAX_WAITING) -> None:
        self.changes: QueueChanges = QueueChanges()
        self.log: DeliveryLog = DeliveryLog()
        self._max_messages = max_messages
        self._waiting: dict[int, Message] = {}
        self._delivered: dict[str, DeliveredState] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def restore(self, messages: Iterable[Message], delivered: Iterable[tuple[str, DeliveredState]]) -> None:
        """Restore the messages of an earlier queue, in their order.

        The results of its last attempts may not have been saved: each of its firing notifications may have arrived.
        """
        self._waiting.update((message.seq, message) for message in messages)
        self._delivered.update(delivered)
        for message in self._waiting.values():
            self._note_arrival(message)

    def message(self, seq: int) -> Message | None:
        return self._waiting.get(seq)

    def delivered_state(self, alert: str) -> DeliveredState | None:
        return self._delivered.get(alert)

    def tracks(self, alert: str) -> bool:
        """Return True if a notification of the alert was sent or is queued."""
        return alert in self._delivered or bool(self._messages_about(alert))

    def all(self) -> tuple[list[Message], dict[str, DeliveredState]]:
        return list(self._waiting.values()), dict(self._delivered)

    def deliveries(self) -> list[Delivery]:
        """Return the newest messages that wait for their first attempt, then the log, newest first."""
        waiting = [one for one in reversed(self._waiting.values()) if self.log.find(one.seq) is None]
        queued = [Delivery(one.seq, one.id, one.alert, one.kind.value, QUEUED, 0) for one in waiting[:MAX_QUEUED]]
        return [*queued, *self.log.latest()]

    def firing_bodies(self) -> list[bytes]:
        """Return the bodies of delivered firing notifications whose alerts have not been reported as resolved."""
        return [one.body for one in self._delivered.values() if one.may_have_arrived and one.body]

    def add(self, new: Message) -> list[Outcome]:
        """Append a message. Returns the outcomes of messages that are dropped because of it, or of itself."""
        is_end = new.kind is Kind.RESOLVED and self._has_perhaps_arrived(new.alert)
        outcomes = self._drop_stale(new.alert) if new.kind is Kind.RESOLVED else []
        if not is_end and self._is_redundant(new):
            return [*outcomes, Outcome.SUPERSEDED]
        self._waiting[new.seq] = new
        self.changes.messages.add(new.seq)
        return outcomes + self._make_room(new)

    def first_due(self, now: float) -> Message | None:
        return next((entry for entry in self._heads() if entry.due <= now and not entry.in_flight), None)

    def next_due(self) -> float | None:
        """Return the time when the next message is due, None if none is waiting."""
        return min((entry.due for entry in self._heads() if not entry.in_flight), default=None)

    def retry_now(self, now: float) -> None:
        """Make all messages due now."""
        for entry in self._waiting.values():
            entry.due = min(entry.due, now)

    def log_attempt(self, entry: Message, status: int | None, failure: str, unix: float) -> None:
        """Log an attempt as one that is retried. Call before `mark_delivered` and the like, which change that."""
        before = self.log.find(entry.seq)
        attempts = before.attempts + 1 if before else 1
        kind, result = entry.kind.value, Outcome.RETRY.value
        self.log.record(Delivery(entry.seq, entry.id, entry.alert, kind, result, attempts, status, failure, unix))

    def mark_delivered(self, entry: Message) -> None:
        self._remove(entry, Outcome.DELIVERED)
        self._note_arrival(entry)
        if not entry.firing:
            self._forget(entry.alert)

    def mark_interrupted(self, entry: Message, may_have_arrived: bool = True) -> None:
        """Record an attempt that does not count, because its receiver is replaced or its result was lost."""
        entry.in_flight = False
        if may_have_arrived:
            self._note_arrival(entry)

    def recover(self) -> None:
        """Record that all attempts under way have ended, with unknown results."""
        for entry in self._waiting.values():
            if entry.in_flight:
                self.mark_interrupted(entry)

    def mark_failed(self, entry: Message, may_have_arrived: bool) -> list[Outcome]:
        """Record a failed attempt. A firing notification whose alert resolved meanwhile is not retried."""
        entry.in_flight = False
        entry.attempts += 1
        self.changes.messages.add(entry.seq)
        if may_have_arrived:
            self._note_arrival(entry)
        if not entry.firing:
            return []
        resolves = [other for other in self._messages_about(entry.alert) if other.kind is Kind.RESOLVED]
        if not resolves:
            return []
        outcomes = self._drop_stale(entry.alert, up_to=resolves[-1])
        if self._forget_undelivered(entry.alert):
            self._remove(resolves[-1], Outcome.SUPERSEDED)
            outcomes.append(Outcome.SUPERSEDED)
        return outcomes

    def give_up(self, entry: Message, outcome: Outcome = Outcome.GAVE_UP) -> None:
        self._remove(entry, outcome)
        if entry.firing and entry.alert not in self._delivered:
            self._set_delivered(entry.alert, DeliveredState(False))

    def clear(self) -> int:
        """Drop everything because the receiver is disabled, and return the number of messages dropped."""
        dropped = len(self._waiting)
        for entry in list(self._waiting.values()):
            self._remove(entry, Outcome.DISABLED)
        for alert in list(self._delivered):
            self._forget(alert)
        return dropped

    def keep_only(self, wanted: Callable[[str], bool]) -> None:
        """Drop alerts that the receiver no longer subscribes to."""
        for entry in [entry for entry in self._waiting.values() if not wanted(entry.alert)]:
            self._remove(entry, Outcome.SUPERSEDED)
        for alert in [alert for alert in self._delivered if not wanted(alert)]:
            self._forget(alert)

    def _remove(self, entry: Message, outcome: Outcome) -> None:
        self._waiting.pop(entry.seq, None)  # the receiver's replacement may have dropped it meanwhile
        self.log.end(entry.seq, outcome.value)
        self.changes.messages.add(entry.seq)

    def _set_delivered(self, alert: str, delivered: DeliveredState) -> None:
        self._delivered[alert] = delivered
        self.changes.delivered.add(alert)

    def _note_arrival(self, entry: Message) -> None:
        """Record that a message may have arrived. If it is a firing notification, the end of its alert is due."""
        if entry.firing:
            self._set_delivered(entry.alert, DeliveredState(True, entry.body))

    def _forget(self, alert: str) -> None:
        if self._delivered.pop(alert, None) is not None:
            self.changes.delivered.add(alert)

    def _messages_about(self, alert: str) -> list[Message]:
        return [entry for entry in self._waiting.values() if entry.alert == alert]

    def _heads(self) -> Iterator[Message]:
        alerts: set[str] = set()
        for entry in self._waiting.values():
            if entry.alert not in alerts:
                alerts.add(entry.alert)
                yield entry

    def _is_redundant(self, new: Message) -> bool:
        """Return True for a message that repeats the last one, or resolves an undelivered firing notification."""
        if new.kind is Kind.FACT or new.changed:
            return False
        if new.kind is Kind.TEST:
            return self._hasten_test(new.due)
        before = self._messages_about(new.alert)
        if before:
            return before[-1].kind is new.kind
        return new.kind is Kind.RESOLVED and self._forget_undelivered(new.alert)

    def _has_perhaps_arrived(self, alert: str) -> bool:
        """Return True if a firing notification that still waits may have arrived before a restart.

        The end of an earlier one, if that waits too, is not its end: a receiver drops what it has got before.
        """
        last = self._delivered.get(alert)
        waiting = [entry.body for entry in self._messages_about(alert) if entry.firing]
        return last is not None and last.may_have_arrived and bool(waiting) and waiting[-1] == last.body

    def _forget_undelivered(self, alert: str) -> bool:
        """Return True once if the last firing notification was dropped before it was delivered."""
        last = self._delivered.get(alert)
        if last is None or last.may_have_arrived:
            return False
        self._forget(alert)
        return True

    def _drop_stale(self, alert: str, up_to: Message | None = None) -> list[Outcome]:
        """Drop the alert's firing notifications that are not being sent right now."""
        outcomes = []
        for entry in self._messages_about(alert):
            if entry is up_to:
                break
            if entry.firing and not entry.in_flight:
                self.give_up(entry, Outcome.SUPERSEDED)
                outcomes.append(Outcome.SUPERSEDED)
        return outcomes

    def _hasten_test(self, due: float) -> bool:
        """Make the queued test due by then. Return False if there is none."""
        queued = next((entry for entry in self._waiting.values() if entry.kind is Kind.TEST), None)
        if queued is not None:
            queued.due = min(queued.due, due)
        return queued is not None

    def _make_room(self, new: Message) -> list[Outcome]:
        excess = len(self._waiting) - self._max_messages
        dropped = self._droppable(new)[:excess] if excess > 0 else []
        for entry in dropped:
            self._remove(entry, Outcome.GAVE_UP)
        return [Outcome.GAVE_UP] * len(dropped)

    def _droppable(self, new: Message) -> list[Message]:
        """Return the messages that may be dropped for a new one, the least important first."""
        newest = {entry.alert: entry for entry in self._waiting.values() if entry.kind in ABOUT_ALERTS}
        idle = [
            entry
            for entry in self._waiting.values()
            if entry is not new and not entry.in_flight and newest.get(entry.alert) is not entry
        ]
        return sorted(idle, key=lambda entry: DROP_ORDER.index(entry.kind))


# Seconds from an alert to its delivery: at once, after the first retries, and later.
LATENCY_BOUNDS = (1.0, 10.0, 60.0, 600.0)


class ReceiverQueue:
    """One receiver's part of the outbox. `changed` guards it and is notified when there may be work."""

    def __init__(self, name: str, changed: threading.Condition, dirty: Callable[[], None]) -> None:
        self.name = name
        self.changed = changed
        self.queue: Queue = Queue()
        self.counts: Counter[Outcome] = Counter()
        self.latency: Histogram = Histogram(LATENCY_BOUNDS)
        self.fresh: list[Message] = []
        self._dirty = dirty
        self._is_dropping = False

    def add(self, message: Message) -> bool:
        """Append a message. Return True if the full queue begins to drop messages. Call with `changed` held."""
        outcomes = self.queue.add(message)
        self.counts.update(outcomes)
        self.fresh.append(message)
        self.changed.notify_all()
        began = Outcome.GAVE_UP in outcomes and not self._is_dropping
        self._is_dropping = began or (self._is_dropping and len(self.queue) > MAX_WAITING // 2)
        return began

    def count(self, outcomes: Iterable[Outcome]) -> None:
        """Count outcomes and schedule a write. Call with `changed` held."""
        self.counts.update(outcomes)
        self._dirty()
