"""What happened and when: a bounded log of sentences, numbered so that a reader can resume."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

KEPT_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """`kind`: started, reloaded, level, alert, oom_kill, driver, suspend, clock, late, collector, release,
    unclean, history, replay, leak."""

    seq: int
    unix: float
    kind: str
    text: str
    target: str | None = None


class EventLog:
    """The last events. One thread adds; any thread may read."""

    def __init__(self, kept: int = KEPT_EVENTS) -> None:
        self._events: deque[Event] = deque(maxlen=kept)
        self._seq = 0

    def add(self, unix: float, kind: str, text: str, target: str | None = None) -> Event:
        self._seq += 1
        event = Event(self._seq, unix, kind, text, target)
        self._events.append(event)
        return event

    @property
    def last_seq(self) -> int:
        return self._seq

    def since(self, seq: int) -> list[Event]:
        """Events after number `seq`, oldest first."""
        return [event for event in self._events.copy() if event.seq > seq]

    def latest(self, count: int) -> list[Event]:
        """The newest `count` events, newest first."""
        return list(islice(reversed(self._events.copy()), count))
