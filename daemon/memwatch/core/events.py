"""Bounded log of events, numbered so that a reader can resume."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc

MAX_EVENTS = 1000
MAX_MARKS = 500
MARK, LEASE = "mark", "lease"
# Events that programs cause. They are kept apart, so that they displace no other.
OF_PROGRAMS = frozenset({MARK, LEASE})


class Event(Struct, frozen=True):
    """`kind`: started, reloaded, level, alert, oom_kill, driver, suspend, clock, late, collector, release,
    silence, test, unclean, history, replay, leak, memory.not_returned, memory.returned, process.killed,
    process.orphaned, incident, neighbour.silent, neighbour.back, mark, lease."""

    seq: int
    unix: float
    kind: str
    text: str
    target: Annotated[str | None, Doc("Null for an event without a target.")] = None


class EventLog:
    """The latest events. Marks and leases, which programs cause, never displace others. Thread-safe.

    `on_add` is called with each new event, in the thread that added it.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self.on_add: Callable[[Event], object] = _ignore
        self._events: deque[Event] = deque(maxlen=max_events)
        self._marks: deque[Event] = deque(maxlen=MAX_MARKS)
        self._seq = 0
        self._lock = threading.Lock()

    def add(self, unix: float, kind: str, text: str, target: str | None = None) -> Event:
        kept = self._marks if kind in OF_PROGRAMS else self._events
        return self._append(kept, unix, kind, text, target)

    def mark(self, unix: float, text: str) -> Event:
        """Add a mark that a program sets."""
        return self._append(self._marks, unix, MARK, text, None)

    def restore(self, events: Iterable[Event]) -> None:
        """Restore the events of earlier runs, in ascending order. Call before `add`, which continues from it."""
        for event in events:
            self._seq = event.seq
            (self._marks if event.kind in OF_PROGRAMS else self._events).append(event)

    def continue_after(self, seq: int) -> None:
        """Give no event a number up to `seq`: an earlier run may have used them."""
        with self._lock:
            self._seq = max(self._seq, seq)

    @property
    def last_seq(self) -> int:
        return self._seq

    @property
    def last_event_seq(self) -> int:
        """Number of the newest event that no program caused; 0 before the first."""
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
        self.on_add(event)
        return event

    def _all(self) -> list[Event]:
        # Copied together: a reader that got number 7 without number 6 would not ask for number 6 again.
        with self._lock:
            events, marks = self._events.copy(), self._marks.copy()
        return list(merge(events, marks, key=lambda event: event.seq))


def _ignore(event: Event) -> None:
    """Do nothing: no reader waits for events."""
