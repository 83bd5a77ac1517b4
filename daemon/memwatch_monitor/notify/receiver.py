"""Delivery of notifications. Each receiver has its own thread, queue and schedule, so none waits for another."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from memwatch.core.clock import Clock, SystemClock
from memwatch.core.runtime.worker import ThreadState, Worker
from memwatch.core.units import duration
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import DEFAULT_EVENTS, EVENTS, KERNEL, KILLS, LEVELS
from memwatch_monitor.feature import Histogram
from memwatch_monitor.notify.channel import Channel, Reminder
from memwatch_monitor.notify.http_post import PostResult
from memwatch_monitor.notify.queue import Delivery, Kind, Message, Outcome, ReceiverQueue

log: logging.Logger = logging.getLogger(__name__)

# Seconds before each attempt: at once, 5 s, 30 s, 2, 5, 15 and 30 minutes, then hourly for a day.
SCHEDULE = (0.0, 5.0, 30.0, 120.0, 300.0, 900.0, 1800.0, *[3600.0] * 23)
JITTER = 0.1
HTTP_GONE = 410
# Fraction of the time of `close_all` in which a current attempt may still finish.
FINISH_PART = 0.5
RECOVER_SECONDS = 0.5
# A longer attempt never ends. It may make two requests of up to 60 s (Alertmanager), and glibc looks for up to 30 s
# for each name of its search list (three servers, two attempts of 5 s each: resolv.conf(5)).
MAX_ATTEMPT_SECONDS = 300.0
# Channels with a reminder also repeat resolved notifications for this time, which some receivers require.
RESOLVED_AGAIN_SECONDS = 300.0


class Subscription(Struct, frozen=True):
    """Events and targets of a receiver; no targets means any. Resolved notifications follow firing ones.

    `instead_of_prometheus`: Prometheus's shipped rules leave out what the receiver gets while it works.
    """

    events: frozenset[str] = frozenset(DEFAULT_EVENTS)
    targets: frozenset[str] = frozenset()
    instead_of_prometheus: bool = False

    def wants(self, notification: Notification) -> bool:
        return self.covers(notification.rule, notification.target) and not self._gets_as_other(notification)

    def _gets_as_other(self, notification: Notification) -> bool:
        """Return True if all new reasons of an alert are of a higher level, whose own alert it gets as well."""
        least, new = LEVELS.get(notification.rule), notification.new_reasons
        rules = {level: rule for rule, level in LEVELS.items()}
        return bool(new) and all(
            one.level is not None
            and least is not None
            and one.level > least
            and self.covers(rules[one.level], notification.target)
            for one in new
        )

    def covers(self, rule: str, target: str) -> bool:
        """Check a rule and a target. `kernel` selects all kills, also those for lack of System RAM."""
        is_selected = not self.targets or target in self.targets or (rule == KILLS and KERNEL in self.targets)
        return rule in self.events and is_selected

    def still_wants(self, alert: str) -> bool:
        """Return True if a message from an earlier run still matches, by the key of its alert."""
        rule, _, target = alert.partition(" ")
        return rule not in EVENTS or self.covers(rule, target.partition(" ")[0])


class ReceiverStatus(Struct, frozen=True):
    """State of a receiver. `failure`: why the last attempt failed; empty after a success."""

    disabled: bool
    failure: str
    next_attempt_seconds: float | None
    last_delivered_unix: float | None


class RepeatBatch(Struct, frozen=True):
    """Firing and recently resolved alerts to send again."""

    reminder: Reminder
    bodies: list[bytes]


class Receiver:
    """A notification receiver. Its thread sends the messages of its box, one at a time, and records the results.

    The thread calls `wait` with the condition of the queue and the seconds until it has something to do.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        queue: ReceiverQueue,
        subscription: Subscription = Subscription(),
        schedule: Sequence[float] = SCHEDULE,
        max_attempt_seconds: float = MAX_ATTEMPT_SECONDS,
        clock: Clock | None = None,
        wait: Callable[[threading.Condition, float | None], object] = threading.Condition.wait,
    ) -> None:
        self.name = name
        self._clock: Clock = clock or SystemClock()
        self._wait = wait
        self.channel = channel
        self.queue = queue
        with queue.changed:
            queue.queue.keep_only(subscription.still_wants)
        self.subscription = subscription
        self.disabled: bool = False
        self._schedule = schedule
        self._closing = False
        self._hold_until = 0.0
        self._again_at = 0.0
        self._resolved: list[tuple[float, bytes]] = []
        self._failure = ""
        self._max_attempt_seconds = max_attempt_seconds
        self._busy_since: float | None = None
        self._last_defect = ""
        self._delivered_unix: float | None = None
        self.thread_name: str = f"{channel.kind}-{name}"
        self._thread = Worker(self._serve, self.thread_name)

    def start(self) -> bool:
        """Start the thread. Returns False if no thread can be created now; call it again later."""
        return self._thread.begin()

    @property
    def latency(self) -> Histogram:
        return self.queue.latency

    def counts(self) -> Mapping[str, int]:
        with self.queue.changed:
            return {outcome.value: self.queue.counts[outcome] for outcome in Outcome}

    def tracks(self, alert: str) -> bool:
        """Return True if a notification of this alert was sent or is queued."""
        with self.queue.changed:
            return self.queue.queue.tracks(alert)

    def pending(self) -> int:
        with self.queue.changed:
            return len(self.queue.queue)

    def in_place_of_prometheus(self) -> Subscription | None:
        """Return the subscription if Prometheus's rules may leave it out: it is meant so, and delivery works."""
        works = not self.disabled and not self._failure and self.thread_state() is ThreadState.OK
        return self.subscription if works and self.subscription.instead_of_prometheus else None

    def status(self) -> ReceiverStatus:
        with self.queue.changed:
            due = self.queue.queue.next_due()
            wait = None if due is None else max(0.0, max(due, self._hold_until) - self._clock.monotonic())
            return ReceiverStatus(self.disabled, self._failure, wait, self._delivered_unix)

    def deliveries(self) -> list[tuple[Delivery, float | None]]:
        """Return the latest deliveries, newest first, with the seconds until the next attempt."""
        with self.queue.changed:
            return [(one, self._wait_of(one)) for one in self.queue.queue.deliveries()]

    def _wait_of(self, delivery: Delivery) -> float | None:
        message = self.queue.queue.message(delivery.seq)
        if message is None or message.in_flight:
            return None
        return max(0.0, max(message.due, self._hold_until) - self._clock.monotonic())

    def thread_state(self) -> ThreadState:
        """Return the state of the thread. It is stuck if an attempt takes longer than any attempt may."""
        if self._closing:
            return ThreadState.OK
        busy_since, state = self._busy_since, self._thread.state()
        is_stuck = busy_since is not None and self._clock.monotonic() - busy_since > self._max_attempt_seconds
        return ThreadState.STUCK if is_stuck and state is ThreadState.OK else state

    def stop_soon(self) -> None:
        """Stop after the current attempt."""
        with self.queue.changed:
            self._closing = True
            self.queue.changed.notify_all()

    def join(self, until: float) -> None:
        """Wait for the thread to end, at most until that monotonic second."""
        self._thread.join(until - time.monotonic())

    def _serve(self) -> None:
        self._prepare()
        while not self._closing:
            self._serve_until_closed()

    def _serve_until_closed(self) -> None:
        try:
            self._serve_all()
        except Exception as error:  # noqa: BLE001  out of memory or a defect: the next attempt must follow
            self._recover(error)

    def _prepare(self) -> None:
        self._busy_since = self._clock.monotonic()
        try:
            self.channel.prepare()
        except Exception:  # each attempt loads what is missing, and reports its failure
            log.debug("%s cannot be prepared", self.channel.title, exc_info=True)
        self._busy_since = None

    def _serve_all(self) -> None:
        while (task := self._take()) is not None:
            self._busy_since = self._clock.monotonic()
            answer = self._attempt(task)
            self._busy_since = None
            with self.queue.changed:
                if isinstance(task, Message):
                    self._handle_result(task, answer)
                else:
                    self._handle_repeat(task, answer)
                if self._closing:
                    self.queue.changed.notify_all()  # wakes the receiver that replaces this one

    def _recover(self, error: Exception) -> None:
        # An error while the result of an attempt was recorded: the attempt is repeated.
        defect = f"{type(error).__name__}: {error}"
        if defect != self._last_defect and not isinstance(error, MemoryError):
            self._last_defect = defect
            log.error("%s: an attempt cannot be recorded and is repeated: %s", self.channel.title, defect)
        with self.queue.changed:
            self.queue.queue.recover()
            self._wait(self.queue.changed, RECOVER_SECONDS)

    def _attempt(self, task: Message | RepeatBatch) -> PostResult:
        # Any error is a failed attempt, and the next one must follow.
        try:
            if isinstance(task, Message):
                return self.channel.send(task.id, task.body)
            return task.reminder.send(task.bodies)
        except Exception as error:
            log.debug("unexpected error in a delivery attempt", exc_info=True)
            return PostResult(None, f"the attempt failed: {type(error).__name__}", may_have_arrived=True)

    def _take(self) -> Message | RepeatBatch | None:
        """Wait for the next due message or reminder. None when stopping."""
        with self.queue.changed:
            while not self._closing:
                if self.disabled:
                    self._refuse_all()
                now = self._clock.monotonic()
                entry = self.queue.queue.first_due(now) if now >= self._hold_until else None
                if entry is not None:
                    entry.in_flight = True
                    return entry
                again = self._next_repeat(now)
                if again and now >= max(self._again_at, self._hold_until):
                    self._again_at = now + again.reminder.seconds
                    return again
                self._wait(self.queue.changed, self._pause(now, again is not None))
        return None

    def _pause(self, now: float, again: bool) -> float | None:
        due = self.queue.queue.next_due()
        times = [] if due is None else [due]
        times += [self._again_at] if again else []
        return max(min(times), self._hold_until) - now if times else None

    def _next_repeat(self, now: float) -> RepeatBatch | None:
        if self.channel.reminder is None or self.disabled:
            return None
        self._resolved = [(until, body) for until, body in self._resolved if now < until]
        bodies = self.queue.queue.firing_bodies() + [body for _, body in self._resolved]
        return RepeatBatch(self.channel.reminder, bodies) if bodies else None

    def _handle_result(self, entry: Message, answer: PostResult) -> None:
        failure = "" if answer.success else answer.failure
        self.queue.queue.log_attempt(entry, answer.status, failure, self._clock.wall())
        if answer.success:
            self.queue.queue.mark_delivered(entry)
            self.queue.count([Outcome.DELIVERED])
            self._delivered_unix = self._clock.wall()
            if entry.queued_at is not None:
                self.queue.latency.observe(self._clock.monotonic() - entry.queued_at)
            self._schedule_repeat(entry)
            self._log_recovery()
        elif answer.status == HTTP_GONE:
            self._disable()
        elif self._closing:
            self.queue.queue.mark_interrupted(entry, answer.may_have_arrived)
        else:
            self._schedule_retry(entry, answer)

    def _schedule_repeat(self, entry: Message) -> None:
        if self.channel.reminder is None:
            return
        now = self._clock.monotonic()
        self._again_at = now + self.channel.reminder.seconds
        if entry.kind is Kind.RESOLVED:
            self._resolved.append((now + RESOLVED_AGAIN_SECONDS, entry.body))

    def _handle_repeat(self, repeat: RepeatBatch, answer: PostResult) -> None:
        """Handle the result of a reminder: it is not counted, only failures are logged."""
        if answer.success:
            self._log_recovery()
        elif not self._closing:
            self._hold(answer)
            self._log_failure(answer.failure, f"firing alerts are sent again every {repeat.reminder.seconds:.0f} s")

    def _schedule_retry(self, entry: Message, answer: PostResult) -> None:
        dropped = self.queue.queue.mark_failed(entry, answer.may_have_arrived)
        self._hold(answer)
        if dropped:
            self.queue.count(dropped)
            self._log_failure(answer.failure, "the alert resolved meanwhile; its notifications are dropped")
        elif entry.attempts >= len(self._schedule):
            self.queue.queue.give_up(entry)
            self.queue.count([Outcome.GAVE_UP])
            log.error("%s: %s; gave up after %d attempts", self.channel.title, answer.failure, entry.attempts)
        else:
            now = self._clock.monotonic()
            pause = self._schedule[entry.attempts] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
            entry.due = now + pause
            wait = duration(max(pause, self._hold_until - now))
            self.queue.count([Outcome.RETRY])
            self._log_failure(answer.failure, f"retrying in {wait}, then at longer intervals")

    def _hold(self, answer: PostResult) -> None:
        # Retry-After applies to all queued messages.
        if answer.retry_after_seconds:
            self._hold_until = self._clock.monotonic() + answer.retry_after_seconds

    def _disable(self) -> None:
        self.disabled, self._failure = True, "answered 410, gone"
        self._refuse_all()
        log.error(
            "%s: answered 410, gone; nothing more is sent to it until its settings change or memwatchd restarts",
            self.channel.title,
        )

    def _refuse_all(self) -> None:
        lost = self.queue.queue.clear()
        if lost:
            self.queue.count([Outcome.DISABLED] * lost)

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
