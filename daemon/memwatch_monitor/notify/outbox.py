"""The queues of all receivers in memory, and the thread that writes their changes to disk."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import Struct, field

from memwatch.core.runtime.worker import Backoff, FailureLog, ThreadState, Worker
from memwatch_monitor.notify.queue import MAX_WAITING, DeliveredState, Kind, Message, ReceiverQueue

log: logging.Logger = logging.getLogger(__name__)

# Rows of the tables have a checksum each: SQLite's checks miss flipped bits (measured, 2 of 2).
Cell = str | bytes | int | float | None
Row = tuple[Cell, ...]


class OutboxRowError(ValueError):
    """A row with a wrong checksum or invalid values."""


class StoredOutbox(Struct):
    """Content of the disk. By receiver: messages, and delivered alerts (`delivered`). Also named values."""

    messages: dict[str, list[Message]] = field(default_factory=dict)
    delivered: dict[str, list[tuple[str, DeliveredState]]] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    last_seq: int = 0
    bad_rows: int = 0


class Batch(Struct):
    """Content of one transaction: rows by their keys, None for rows to delete."""

    messages: dict[int, Row | None] = field(default_factory=dict)
    delivered: dict[tuple[str, str], Row | None] = field(default_factory=dict)
    values: dict[str, Row] = field(default_factory=dict)
    everything: bool = False  # all other rows are deleted


def message_row(receiver: str, message: Message) -> Row:
    aggregates = (
        message.seq,
        receiver,
        message.id,
        message.alert,
        message.kind.value,
        message.body,
        message.attempts,
    )
    return (*aggregates, checksum(aggregates))


def parse_message(row: Row) -> tuple[str, Message]:
    """Parse a row into receiver and message. Raises OutboxRowError."""
    seq, receiver, its_id, alert, kind, body, attempts = verify(row)
    if not isinstance(seq, int) or not isinstance(attempts, int) or not isinstance(body, bytes):
        raise OutboxRowError
    try:
        return str(receiver), Message(seq, str(its_id), str(alert), Kind(kind), body, attempts)
    except ValueError:
        raise OutboxRowError from None


def delivered_row(receiver: str, alert: str, delivered: DeliveredState) -> Row:
    aggregates = (receiver, alert, int(delivered.may_have_arrived), delivered.body)
    return (*aggregates, checksum(aggregates))


def parse_delivered(row: Row) -> tuple[str, str, DeliveredState]:
    """Parse a row into receiver, alert and delivery state. Raises OutboxRowError."""
    receiver, alert, may_have_arrived, body = verify(row)
    if not isinstance(body, bytes):
        raise OutboxRowError
    return str(receiver), str(alert), DeliveredState(bool(may_have_arrived), body)


def value_row(name: str, value: bytes) -> Row:
    return (name, value, checksum((name, value)))


def parse_value(row: Row) -> tuple[str, bytes]:
    """Parse a row into name and value. Raises OutboxRowError."""
    name, value = verify(row)
    if not isinstance(value, bytes):
        raise OutboxRowError
    return str(name), value


def verify(row: Row) -> Row:
    """Return the row without its checksum. Raises OutboxRowError if the checksum is wrong."""
    *aggregates, sum_found = row
    if checksum(tuple(aggregates)) != sum_found:
        raise OutboxRowError
    return tuple(aggregates)


def checksum(aggregates: Row) -> int:
    """Return the CRC-32 of the cells with their types and lengths, which keeps cell boundaries distinct."""
    total = 0
    for aggregate in aggregates:
        data = aggregate if isinstance(aggregate, bytes) else str(aggregate).encode("utf-8", "surrogateescape")
        total = zlib.crc32(data, zlib.crc32(b"%s%d:" % (type(aggregate).__name__.encode(), len(data)), total))
    return total


# Sending waits at most this long for the disk, so a hanging disk does not delay alerts. If the daemon crashes
# before the message is written, the alert is sent again after the restart.
COMMIT_WAIT_SECONDS = 0.02
# Changes that are not urgent (a pending alert, a delivered message) are collected for this time in one transaction.
LAZY_SECONDS = 1.0
RETRY_FIRST_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
# A write that takes longer is reported as a hanging disk. Storage that recovers by itself takes up to 30 s for one
# attempt (the default timeout of a SCSI command in Linux).
HANG_SECONDS = 30.0

FULL = (
    "receiver %s: notifications are dropped: %d are queued and it accepts none; repair it or remove it from the "
    "configuration. Tests and one-off events are dropped first, the newest notification of an alert never"
)


class MessageStore(Protocol):
    """Storage for messages. Implemented by Store, whose module loads SQLite."""

    def write(self, batch: Batch) -> None:
        """Write all of the batch or nothing. Raises OSError."""

    def close(self) -> None: ...


class NewMessage(Struct, frozen=True):
    """A message that is not queued yet."""

    id: str
    alert: str
    kind: Kind
    body: bytes
    changed: bool = False


class Outbox:
    """Persistent queues. Without a store, or while writing fails, they are in memory only.

    `errors` counts write errors. All methods are thread-safe. Only `flush` and `close` wait for the disk.
    """

    def __init__(
        self,
        store: MessageStore | None,
        kept: StoredOutbox | None = None,
        hang_seconds: float = HANG_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.errors: int = 0
        self.values: dict[str, bytes] = dict(kept.values) if kept else {}
        self._store = store
        self._monotonic = monotonic
        self._stored = kept or StoredOutbox()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._written = threading.Condition(self._lock)
        self._queues: dict[str, ReceiverQueue] = {}
        self._changed_values: set[str] = set()
        self._seq = self._stored.last_seq
        self._urgent = self._lazy = False
        # The disk differs from memory by more than the recorded changes: the next write replaces everything.
        self._behind = False
        # The last write failed.
        self._is_failing = False
        self._started = self._closing = self._finished = False
        self._wanted = self._done = 0
        self._backoff = Backoff(RETRY_FIRST_SECONDS, MAX_RETRY_SECONDS)
        self._last_failure = ""
        self._failure_log = FailureLog()
        self._hang_seconds = hang_seconds
        self._writing_since: float | None = None
        self._thread = Worker(self._serve, "outbox")

    @property
    def durable(self) -> bool:
        """True if queued messages survive the daemon."""
        return self._store is not None and not self._is_failing and not self._hangs()

    def thread_state(self) -> ThreadState:
        """Return the state of the writing thread; OK if none is needed."""
        if not self._is_needed() or self._closing:
            return ThreadState.OK
        state = self._thread.state()
        return ThreadState.DISK_HANGS if state is ThreadState.OK and self._hangs() else state

    def queue(self, name: str) -> ReceiverQueue:
        """Return a receiver's box, with messages left by an earlier receiver of that name or an earlier run.

        All of them become due at once.
        """
        with self._lock:
            if name not in self._queues:
                self._queues[name] = self._restore(name)
                self._begin()
            queue = self._queues[name]
            queue.queue.retry_now(self._monotonic())
            return queue

    def forget(self, name: str) -> int:
        """Drop a receiver's box, also on disk, and return the number of its messages."""
        with self._lock:
            queue = self._queues.pop(name, None)
            self._behind = True
            self._dirty()
            return len(queue.queue) if queue else 0

    def start(self) -> None:
        """Start writing. Messages of receivers without a box are dropped."""
        unknown = sorted({*self._stored.messages, *self._stored.delivered})
        if unknown:
            lost = sum(len(messages) for messages in self._stored.messages.values())
            log.warning("receivers removed: %s; notifications dropped: %d", ", ".join(unknown), lost)
        with self._lock:
            self._behind = self._behind or bool(unknown)
            self._stored = StoredOutbox()
            self._lazy = self._started = True
            self._begin()

    def retry_start(self) -> None:
        """Start the thread if it could not be started before. Call it after every tick."""
        if self.thread_state() is ThreadState.NOT_STARTED:
            with self._lock:
                self._begin()

    def put(
        self,
        new_messages: Sequence[tuple[ReceiverQueue, NewMessage]],
        values: Mapping[str, bytes],
        urgent: bool = True,
    ) -> None:
        """Queue messages and change named values, in one transaction."""
        now = self._monotonic()
        backoff = COMMIT_WAIT_SECONDS if self.durable else 0.0
        full = []
        with self._lock:
            self._begin()
            for queue, new_message in new_messages:
                self._seq += 1
                message = Message(
                    self._seq,
                    new_message.id,
                    new_message.alert,
                    new_message.kind,
                    new_message.body,
                    due=now + backoff,
                    queued_at=now,
                    changed=new_message.changed,
                )
                if queue.add(message):
                    full.append(queue.name)
            for name, value in values.items():
                if self.values.get(name) != value:
                    self.values[name] = value
                    self._changed_values.add(name)
            self._urgent = self._urgent or urgent
            self._dirty()
        for name in full:
            log.error(FULL, name, MAX_WAITING)

    def flush(self, timeout: float) -> bool:
        """Wait until everything put so far is on disk. Returns False on timeout or without a store."""
        until = time.monotonic() + timeout
        with self._lock:
            target = self._wanted
            self._urgent = True
            self._work.notify()
            while self._done < target:
                if not self._written.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    return False
        return self._store is not None

    def close(self, timeout: float = 1.0) -> None:
        """Write what is left and close the file, within `timeout` seconds."""
        with self._lock:
            self._closing = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)
        elif self._store is not None:
            self._store.close()

    def _restore(self, name: str) -> ReceiverQueue:
        # One attempt is subtracted from each message's count so that restarts do not use up attempts.
        queue = ReceiverQueue(name, threading.Condition(self._lock), self._dirty)
        messages = self._stored.messages.pop(name, [])
        for message in messages:
            message.attempts = max(0, message.attempts - 1)
        queue.queue.restore(messages, self._stored.delivered.pop(name, ()))
        return queue

    def _begin(self) -> None:
        # No thread without receivers and store. If no thread can be created, the next `put` tries again.
        if self._is_needed():
            self._thread.begin()

    def _is_needed(self) -> bool:
        return self._started and (bool(self._queues) or self._store is not None)

    def _hangs(self) -> bool:
        since = self._writing_since
        return since is not None and self._monotonic() - since > self._hang_seconds

    def _dirty(self) -> None:
        self._wanted += 1
        self._lazy = True
        self._work.notify()

    def _serve(self) -> None:
        while self._wait_for_work():
            self._write_or_log()
        if self._store is not None:
            self._store.close()

    def _write_or_log(self) -> None:
        try:
            self._write()
        except Exception as error:  # noqa: BLE001  out of memory or disk error: the next attempt must follow
            self._writing_since = None
            self._record_failure(error)

    def _write(self) -> None:
        with self._lock:
            upto = self._wanted
            fresh = [message for queue in self._queues.values() for message in queue.fresh]
            for queue in self._queues.values():
                queue.fresh = []
            batch = self._batch()
            self._behind = False
        if self._store is not None:
            self._writing_since = self._monotonic()
            self._store.write(batch)
            self._writing_since = None
        if self._last_failure and self._failure_log.admits_recovery():
            log.warning("alerts are saved to disk again")
        self._last_failure, self._is_failing = "", False
        self._backoff.reset()
        self._announce(fresh, upto)

    def _wait_for_work(self) -> bool:
        """Wait for something to write. Returns False when stopping and nothing is left."""
        with self._lock:
            lazy_until = None
            while True:
                if self._closing:
                    return self._finish_once()
                now = self._monotonic()
                if self._lazy and lazy_until is None:
                    lazy_until = now + LAZY_SECONDS
                ready = self._urgent or (lazy_until is not None and now >= lazy_until)
                if ready and (not self._is_failing or self._backoff.is_due(now)):
                    self._urgent = self._lazy = False
                    return True
                self._work.wait(self._pause(now, lazy_until, ready))

    def _finish_once(self) -> bool:
        """Return True once when stopping, if anything is left to write."""
        first, self._finished = not self._finished, True
        return first and self._lazy

    def _pause(self, now: float, lazy_until: float | None, ready: bool) -> float | None:
        if ready:
            return 1.0 if self._is_failing else 0.0
        return None if lazy_until is None else max(0.0, lazy_until - now)

    def _batch(self) -> Batch:
        """Return the differences from the disk as rows. Call with the lock held."""
        batch = Batch(everything=self._behind)
        for queue in self._queues.values():
            if self._behind:
                messages, delivered = queue.queue.all()
                queue.queue.changes.messages.update(message.seq for message in messages)
                queue.queue.changes.delivered.update(delivered)
            self._add_changes(batch, queue)
        names = self.values if self._behind else self._changed_values
        batch.values = {name: value_row(name, self.values[name]) for name in names}
        self._changed_values = set()
        return batch

    @staticmethod
    def _add_changes(batch: Batch, queue: ReceiverQueue) -> None:
        changes = queue.queue.changes
        for seq in changes.messages:
            message = queue.queue.message(seq)
            batch.messages[seq] = None if message is None else message_row(queue.name, message)
        for alert in changes.delivered:
            delivered = queue.queue.delivered_state(alert)
            batch.delivered[queue.name, alert] = (
                None if delivered is None else delivered_row(queue.name, alert, delivered)
            )
        changes.messages, changes.delivered = set(), set()

    def _record_failure(self, error: Exception) -> None:
        # From here on the disk is outdated, until one transaction has rewritten everything.
        self.errors += 1
        self._is_failing = True
        self._backoff.failed(self._monotonic())
        with self._lock:
            self._behind = self._lazy = self._urgent = True
        with suppress(MemoryError):  # a line that does not fit into memory must not end the thread
            complaint = f"alerts cannot be saved to disk ({error}): they would be lost at a restart"
            if complaint != self._last_failure and self._failure_log.admits(complaint):
                log.error("%s", complaint)
            self._last_failure = complaint

    def _announce(self, fresh: Sequence[Message], upto: int) -> None:
        # Written messages are due at once.
        now = self._monotonic()
        with self._lock:
            self._done = upto
            for message in fresh:
                if not message.attempts:  # a message that failed before keeps its scheduled time
                    message.due = min(message.due, now)
            for queue in self._queues.values():
                queue.changed.notify_all()
            self._written.notify_all()
