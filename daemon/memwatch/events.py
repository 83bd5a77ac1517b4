"""Bounded log of events, numbered so that a reader can resume."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from heapq import merge
from itertools import islice

from msgspec import Struct

MAX_EVENTS = 1000
MAX_MARKS = 500
MARK = "mark"


class Event(Struct, frozen=True):
    """`kind`: started, reloaded, level, alert, oom_kill, driver, suspend, clock, late, collector, release,
    silence, test, unclean, history, replay, leak, mark."""

    seq: int
    unix: float
    kind: str
    text: str
    target: str | None = None


class EventLog:
    """The latest events and marks. Programs set marks; these never displace events. Thread-safe."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._events: deque[Event] = deque(maxlen=max_events)
        self._marks: deque[Event] = deque(maxlen=MAX_MARKS)
        self._seq = 0
        self._lock = threading.Lock()

    def add(self, unix: float, kind: str, text: str, target: str | None = None) -> Event:
        return self._append(self._events, unix, kind, text, target)

    def mark(self, unix: float, text: str) -> Event:
        """Add a mark that a program sets."""
        return self._append(self._marks, unix, MARK, text, None)

    def restore(self, events: Iterable[Event]) -> None:
        """Restore the events of earlier runs, in ascending order. Call before `add`, which continues from it."""
        for event in events:
            self._seq = event.seq
            (self._marks if event.kind == MARK else self._events).append(event)

    @property
    def last_seq(self) -> int:
        return self._seq

    @property
    def last_event_seq(self) -> int:
        """Number of the newest event that is not a mark; 0 before the first."""
        return self._events[-1].seq if self._events else 0

    def since(self, seq: int) -> list[Event]:
        """Return the events after number `seq`, oldest first."""
        return [event for event in self._all() if event.seq > seq]

    def latest(self, count: int) -> list[Event]:
        """Return the newest `count` events, newest first."""
        return list(islice(reversed(self._all()), count))

    def _append(self, kept: deque[Event], unix: float, kind: str, text: str, target: str | None) -> Event:
        with self._lock:
            self._seq += 1
            event = Event(self._seq, unix, kind, text, target)
            kept.append(event)
        return event

    def _all(self) -> list[Event]:
        return list(merge(self._events.copy(), self._marks.copy(), key=lambda event: event.seq))
