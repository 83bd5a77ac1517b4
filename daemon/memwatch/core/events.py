"""Bounded log of events, numbered so that a reader can resume."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import Annotated

from msgspec import Struct

from memwatch.core.budget import KINDS, ROOT, Account, Budget
from memwatch.core.doc import Doc

MAX_EVENTS = 1000
# The text of a mark: the API refuses a longer one, the library cuts it.
MAX_MARK_LENGTH = 300
MARK, LEASE = "mark", "lease"
# Events that programs cause. They are kept apart, so that they displace no other.
OF_PROGRAMS = frozenset({MARK, LEASE})


class Event(Struct, frozen=True):
    """`kind`: started, reloaded, level, alert, oom_kill, driver, suspend, clock, late, collector, release,
    silence, test, unclean, history, replay, leak, memory.not_returned, memory.returned, process.killed,
    process.orphaned, incident, neighbour.silent, neighbour.back, guardian.acted, guardian.would_have_acted,
    guardian.declined, guardian.judged, guardian.froze, guardian.would_have_frozen, mark, lease."""

    seq: int
    unix: float
    kind: str
    text: str
    target: Annotated[str | None, Doc("Null for an event without a target.")] = None


class EventLog:
    """The latest events. Marks and leases, which programs cause, never displace others. Thread-safe.

    Of marks each account has a share: a new one displaces the oldest of the account with the most. Those of earlier
    runs count as root's. `on_add` is called with each new event, in the thread that added it.
    """

    def __init__(self, max_events: int = MAX_EVENTS, budget: Budget | None = None) -> None:
        self.on_add: Callable[[Event], object] = _ignore
        self._events: deque[Event] = deque(maxlen=max_events)
        self._budget = budget if budget is not None else Budget(KINDS["marks"])
        self._marks: dict[int, Event] = {}
        self._seq = 0
        self._lock = threading.Lock()

    def add(self, unix: float, kind: str, text: str, target: str | None = None, account: Account = ROOT) -> Event:
        """Add an event. `account`: of the program that caused it."""
        with self._lock:
            self._seq += 1
            event = Event(self._seq, unix, kind, text, target)
            self._keep(event, account)
        self.on_add(event)
        return event

    def mark(self, unix: float, text: str, account: Account) -> Event:
        """Add a mark that a program sets."""
        return self.add(unix, MARK, text, account=account)

    def restore(self, events: Iterable[Event]) -> None:
        """Restore the events of earlier runs, in ascending order. Call before `add`, which continues from it."""
        for event in events:
            self._seq = event.seq
            self._keep(event, ROOT)

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

    def marks_in_turn(self) -> list[Event]:
        """Return the events that programs caused: the newest of each account, then the one before of each."""
        with self._lock:
            return [self._marks[seq] for seq in self._budget.in_turn() if seq in self._marks]

    def _keep(self, event: Event, account: Account) -> None:
        if event.kind not in OF_PROGRAMS:
            self._events.append(event)
            return
        verdict = self._budget.admit(event.seq, account)
        if isinstance(verdict.gone, int):
            del self._marks[verdict.gone]
        if verdict.is_admitted:
            self._marks[event.seq] = event

    def _all(self) -> list[Event]:
        # Copied together: a reader that got number 7 without number 6 would not ask for number 6 again.
        with self._lock:
            events, marks = self._events.copy(), list(self._marks.values())
        return list(merge(events, marks, key=lambda event: event.seq))


def _ignore(event: Event) -> None:
    """Do nothing: no reader waits for events."""
