"""Delivery of notifications. Each receiver has its own thread, queue and schedule, so none waits for another."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from memwatch.alerts.rules import CRITICAL, EVENTS
from memwatch.alerts.state import Notice
from memwatch.notify.channel import Channel, Reminder
from memwatch.notify.http_post import Answer
from memwatch.notify.outbox.outbox import Box
from memwatch.notify.outbox.queue import Kind, Message, Outcome
from memwatch.runtime.worker import Worker
from memwatch.units import duration

log = logging.getLogger(__name__)

# Seconds before each attempt: at once, 5 s, 30 s, 2, 5, 15 and 30 minutes, then hourly for a day.
SCHEDULE = (0.0, 5.0, 30.0, 120.0, 300.0, 900.0, 1800.0, *[3600.0] * 23)
JITTER = 0.1
GONE = 410
# Fraction of the time of `close_all` in which a current attempt may still finish.
FINISH_PART = 0.5
RECOVER_SECONDS = 0.5
# Channels with a reminder also repeat resolved notifications for this time, which some receivers require.
RESOLVED_AGAIN_SECONDS = 300.0


class Subscription(Struct, frozen=True):
    """Events and targets of a receiver; no targets means any. Resolved notifications follow firing ones."""

    events: frozenset[str] = frozenset({CRITICAL})
    targets: frozenset[str] = frozenset()

    def wants(self, notice: Notice) -> bool:
        return self.covers(notice.rule, notice.target)

    def covers(self, rule: str, target: str) -> bool:
        return rule in self.events and (not self.targets or target in self.targets)

    def still_wants(self, alert: str) -> bool:
        """Return True if a message from an earlier run still matches, by the key of its alert."""
        rule, _, target = alert.partition(" ")
        return rule not in EVENTS or self.covers(rule, target.partition(" ")[0])


class Status(Struct, frozen=True):
    """State of a receiver. `failure`: why the last attempt failed; empty after a success."""

    disabled: bool
    failure: str
    next_attempt_seconds: float | None
    last_delivered_unix: float | None


class Repeat(Struct, frozen=True):
    """Firing and recently resolved alerts to send again."""

    reminder: Reminder
    bodies: list[bytes]


class Receiver:
    """A notification receiver. Its thread sends the messages of its box, one at a time, and records the results."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        box: Box,
        subscription: Subscription = Subscription(),
        schedule: Sequence[float] = SCHEDULE,
    ) -> None:
        self.name = name
        self.channel = channel
        self.box = box
        with box.changed:
            box.queue.keep_only(subscription.still_wants)
        self.subscription = subscription
        self.disabled = False
        self._schedule = schedule
        self._closing = False
        self._hold_until = 0.0
        self._again_at = 0.0
        self._resolved: list[tuple[float, bytes]] = []
        self._failure = ""
        self._delivered_unix: float | None = None
        self._thread = Worker(self._serve, f"{channel.kind}-{name}")

    def start(self) -> bool:
        """Start the thread. Returns False if no thread can be created now; call it again later."""
        return self._thread.begin()

    def counts(self) -> Mapping[str, int]:
        with self.box.changed:
            return {outcome.value: self.box.counts[outcome] for outcome in Outcome}

    def knows_of(self, alert: str) -> bool:
        """Return True if a notification of this alert was sent or is queued."""
        with self.box.changed:
            return self.box.queue.knows_of(alert)

    def pending(self) -> int:
        with self.box.changed:
            return len(self.box.queue)

    def status(self) -> Status:
        with self.box.changed:
            due = self.box.queue.next_due()
            wait = None if due is None else max(0.0, max(due, self._hold_until) - time.monotonic())
            return Status(self.disabled, self._failure, wait, self._delivered_unix)

    def stop_soon(self) -> None:
        """Stop after the current attempt."""
        with self.box.changed:
            self._closing = True
            self.box.changed.notify_all()

    def join(self, until: float) -> None:
        """Wait for the thread to end, at most until that monotonic second."""
        self._thread.join(until - time.monotonic())

    def _serve(self) -> None:
        self.channel.prepare()
        while not self._closing:
            self._serve_until_closed()

    def _serve_until_closed(self) -> None:
        try:
            self._serve_all()
        except MemoryError:
            self._recover()

    def _serve_all(self) -> None:
        while (task := self._take()) is not None:
            answer = self._attempt(task)
            with self.box.changed:
                if isinstance(task, Message):
                    self._settle(task, answer)
                else:
                    self._heed(task, answer)
                if self._closing:
                    self.box.changed.notify_all()  # wakes the receiver that replaces this one

    def _recover(self) -> None:
        # Out of memory while the result of an attempt was recorded: the attempt is repeated.
        with self.box.changed:
            for entry in self.box.queue.all()[0]:
                entry.in_flight = False
            self.box.changed.wait(RECOVER_SECONDS)

    def _attempt(self, task: Message | Repeat) -> Answer:
        # Any error is a failed attempt, and the next one must follow.
        try:
            if isinstance(task, Message):
                return self.channel.send(task.id, task.body)
            return task.reminder.send(task.bodies)
        except Exception as error:
            log.debug("unexpected error in a delivery attempt", exc_info=True)
            return Answer(None, f"the attempt failed: {type(error).__name__}", may_have_heard=True)

    def _take(self) -> Message | Repeat | None:
        """Wait for the next due message or reminder. None when stopping."""
        with self.box.changed:
            while not self._closing:
                if self.disabled:
                    self._refuse_all()
                now = time.monotonic()
                entry = self.box.queue.first_due(now) if now >= self._hold_until else None
                if entry is not None:
                    entry.in_flight = True
                    return entry
                again = self._to_say_again(now)
                if again and now >= max(self._again_at, self._hold_until):
                    self._again_at = now + again.reminder.seconds
                    return again
                self.box.changed.wait(self._pause(now, again is not None))
        return None

    def _pause(self, now: float, again: bool) -> float | None:
        due = self.box.queue.next_due()
        times = [] if due is None else [due]
        times += [self._again_at] if again else []
        return max(min(times), self._hold_until) - now if times else None

    def _to_say_again(self, now: float) -> Repeat | None:
        if self.channel.reminder is None or self.disabled:
            return None
        self._resolved = [(until, body) for until, body in self._resolved if now < until]
        bodies = self.box.queue.firing_bodies() + [body for _, body in self._resolved]
        return Repeat(self.channel.reminder, bodies) if bodies else None

    def _settle(self, entry: Message, answer: Answer) -> None:
        if answer.success:
            self.box.queue.delivered(entry)
            self.box.settled([Outcome.DELIVERED])
            self._delivered_unix = time.time()
            self._say_again_later(entry)
            self._log_recovery()
        elif answer.status == GONE:
            self._disable()
        elif self._closing:
            entry.in_flight = False
        else:
            self._try_later(entry, answer)

    def _say_again_later(self, entry: Message) -> None:
        if self.channel.reminder is None:
            return
        now = time.monotonic()
        self._again_at = now + self.channel.reminder.seconds
        if entry.kind is Kind.RESOLVED:
            self._resolved.append((now + RESOLVED_AGAIN_SECONDS, entry.body))

    def _heed(self, repeat: Repeat, answer: Answer) -> None:
        """Handle the result of a reminder: it is not counted, only failures are logged."""
        if answer.success:
            self._log_recovery()
        elif not self._closing:
            self._hold(answer)
            self._log_failure(answer.failure, f"firing alerts are sent again every {repeat.reminder.seconds:.0f} s")

    def _try_later(self, entry: Message, answer: Answer) -> None:
        dropped = self.box.queue.failed(entry, answer.may_have_heard)
        self._hold(answer)
        if dropped:
            self.box.settled(dropped)
            self._log_failure(answer.failure, "the alert resolved meanwhile; its notifications are dropped")
        elif entry.attempts >= len(self._schedule):
            self.box.queue.give_up(entry)
            self.box.settled([Outcome.GAVE_UP])
            log.error("%s: %s; gave up after %d attempts", self.channel.title, answer.failure, entry.attempts)
        else:
            now = time.monotonic()
            pause = self._schedule[entry.attempts] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
            entry.due = now + pause
            wait = duration(max(pause, self._hold_until - now))
            self.box.settled([Outcome.RETRY])
            self._log_failure(answer.failure, f"retrying in {wait}, then at longer intervals")

    def _hold(self, answer: Answer) -> None:
        # Retry-After applies to all queued messages.
        if answer.retry_after_seconds:
            self._hold_until = time.monotonic() + answer.retry_after_seconds

    def _disable(self) -> None:
        self.disabled, self._failure = True, "answered 410, gone"
        self._refuse_all()
        log.error(
            "%s: answered 410, gone; nothing more is sent to it until its settings change or memwatchd restarts",
            self.channel.title,
        )

    def _refuse_all(self) -> None:
        lost = self.box.queue.clear()
        if lost:
            self.box.settled([Outcome.DISABLED] * lost)

    def _log_failure(self, failure: str, consequence: str) -> None:
        """Log a failure once while it repeats."""
        if failure != self._failure:
            log.warning("%s: %s; %s", self.channel.title, failure, consequence)
            self._failure = failure

    def _log_recovery(self) -> None:
        if self._failure:
            log.warning("%s: delivery works again", self.channel.title)
            self._failure = ""


def close_all(receivers: Iterable[Receiver], timeout: float = 2.0) -> None:
    """Stop all receivers within `timeout` seconds in total, regardless of their number."""
    started = time.monotonic()
    stopping = list(receivers)
    for receiver in stopping:
        receiver.stop_soon()
    for receiver in stopping:
        receiver.join(started + timeout * FINISH_PART)
        receiver.channel.abort()
    for receiver in stopping:
        receiver.join(started + timeout)
