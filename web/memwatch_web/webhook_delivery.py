"""Delivers notices: each receiver has a thread, a queue and a schedule of its own, so none waits for another."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from memwatch.alerts import Notice
from memwatch.snapshot import Snapshot
from memwatch_web.webhook_post import Answer, Clock, Poster
from memwatch_web.webhook_queue import Outcome, Queue, Waiting
from memwatch_web.webhooks import Endpoint, Secret, body_of, headers_of

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

# Seconds before each attempt: at once, 5 s, 30 s, 2, 5, 15 and 30 minutes, then hourly until a day is full.
SCHEDULE = (0.0, 5.0, 30.0, 120.0, 300.0, 900.0, 1800.0, *[3600.0] * 23)
JITTER = 0.1
GONE = 410
THROTTLED = frozenset({429, 503})
# Part of the time given to `close` in which an attempt under way may still come to its end.
FINISH_PART = 0.5


class Receiver:
    """One webhook. `enqueue` may be called from any thread and never waits for the network."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        secret: Secret,
        *,
        timeout_seconds: float = 15.0,
        allow_link_local: bool = False,
        schedule: Sequence[float] = SCHEDULE,
        tls: ssl.SSLContext | None = None,
        wall: Clock = time.time,
    ) -> None:
        self.name = name
        self.disabled = False
        if endpoint.scheme == "https" and tls is None:
            tls = verifying_context()
        self._title = f"webhook {name} ({endpoint.origin})"
        self._secret = secret
        self._schedule = schedule
        self._wall = wall
        self._poster = Poster(endpoint, timeout_seconds, allow_link_local, tls, wall)
        self._queue = Queue()
        self._counts: Counter[Outcome] = Counter()
        self._changed = threading.Condition()
        self._closing = False
        self._hold_until = 0.0
        self._last_failure = ""
        self._thread = threading.Thread(target=self._serve, name=f"webhook-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enqueue(self, notice: Notice, body: bytes) -> None:
        """Put a notice on its way. The same bytes are sent at every attempt."""
        due = time.monotonic() + self._schedule[0]
        entry = Waiting(notice.id, notice.target, notice.firing, body, due)
        with self._changed:
            self._count([Outcome.DISABLED] if self.disabled else self._queue.add(entry))
            self._changed.notify()

    def counts(self) -> Mapping[str, int]:
        """How often each outcome has come about."""
        with self._changed:
            return {outcome.value: self._counts[outcome] for outcome in Outcome}

    def pending(self) -> int:
        """Notices that are not delivered yet."""
        with self._changed:
            return len(self._queue)

    def close(self, timeout: float = 2.0) -> None:
        """Stop within `timeout` seconds; what is not delivered by then is lost, and logged as lost."""
        close_all([self], timeout)

    def stop_soon(self) -> None:
        """Start nothing new."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def abort(self) -> None:
        """End the attempt under way."""
        self._poster.abort()

    def join(self, until: float) -> None:
        """Wait for the thread to end, at most until that monotonic second."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))

    def log_lost(self) -> None:
        if self.pending():
            log.warning("%s: stopped; notices not delivered: %d", self._title, self.pending())

    def _serve(self) -> None:
        while (entry := self._take()) is not None:
            timestamp = int(self._wall())
            answer = self._poster.post(headers_of(self._secret, entry.id, timestamp, entry.body), entry.body)
            with self._changed:
                self._settle(entry, answer)

    def _take(self) -> Waiting | None:
        """The next notice that is due, waiting for it; None when it is time to stop."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                entry = self._queue.first_due(now) if now >= self._hold_until else None
                if entry is not None:
                    entry.in_flight = True
                    return entry
                due = self._queue.next_due()
                self._changed.wait(None if due is None else max(due, self._hold_until) - now)
        return None

    def _settle(self, entry: Waiting, answer: Answer) -> None:
        if answer.success:
            self._queue.delivered(entry)
            self._count([Outcome.DELIVERED])
            self._log_recovery()
        elif answer.status == GONE:
            self._disable()
        elif not self._closing:
            self._try_later(entry, answer)

    def _try_later(self, entry: Waiting, answer: Answer) -> None:
        dropped = self._queue.failed(entry, answer.may_have_heard)
        if answer.status in THROTTLED and answer.retry_after_seconds:
            self._hold_until = time.monotonic() + answer.retry_after_seconds
        if dropped:
            self._count(dropped)
            self._log_failure(answer.failure, "the notice was resolved meanwhile and is dropped")
        elif entry.attempts >= len(self._schedule):
            self._queue.give_up(entry)
            self._count([Outcome.GAVE_UP])
            log.error("%s: %s; gave up after %d attempts", self._title, answer.failure, entry.attempts)
        else:
            pause = self._schedule[entry.attempts] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
            entry.due = time.monotonic() + pause
            self._count([Outcome.RETRY])
            self._log_failure(answer.failure, f"trying again in {pause:.0f} s, then less and less often")

    def _disable(self) -> None:
        self.disabled = True
        lost = self._queue.clear()
        self._count([Outcome.DISABLED] * lost)
        log.error("%s: answered 410, gone; nothing more is sent to it until memwatchd restarts", self._title)

    def _count(self, outcomes: Iterable[Outcome]) -> None:
        self._counts.update(outcomes)

    def _log_failure(self, failure: str, consequence: str) -> None:
        """An identical failure that repeats is logged once."""
        if failure != self._last_failure:
            log.warning("%s: %s; %s", self._title, failure, consequence)
            self._last_failure = failure

    def _log_recovery(self) -> None:
        if self._last_failure:
            log.warning("%s: delivers again", self._title)
            self._last_failure = ""


def notify(
    receivers: Sequence[Receiver], notice: Notice, snapshot: Snapshot, dashboard_url: str | None = None
) -> None:
    """Tell everybody, with the figures of this moment however late the notice arrives."""
    if receivers:
        body = body_of(notice, snapshot, dashboard_url)
        for receiver in receivers:
            receiver.enqueue(notice, body)


def close_all(receivers: Sequence[Receiver], timeout: float = 2.0) -> None:
    """Stop all within `timeout` seconds together, however many of them are waiting for an answer."""
    started = time.monotonic()
    for receiver in receivers:
        receiver.stop_soon()
    for receiver in receivers:
        receiver.join(started + timeout * FINISH_PART)
        receiver.abort()
    for receiver in receivers:
        receiver.join(started + timeout)
        receiver.log_lost()


def verifying_context() -> ssl.SSLContext:
    """TLS that checks certificate and name. Imported here: without an https receiver it would cost 4.5 MiB."""
    import ssl

    return ssl.create_default_context()
