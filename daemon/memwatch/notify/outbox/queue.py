"""What is still to be told to one receiver, and what no longer needs to be. Pure bookkeeping, no lock, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from msgspec import Struct, field

WAITING_MOST = 1000


class Outcome(str, Enum):
    """What became of a message, or of one attempt to deliver it."""

    DELIVERED = "delivered"  # the receiver answered 2xx
    RETRY = "retry"  # the attempt failed; there will be another
    GAVE_UP = "gave_up"  # the last attempt of the schedule failed, or too many messages waited
    DISABLED = "disabled"  # the receiver has answered 410 and wants nothing any more
    SUPERSEDED = "superseded"  # made pointless by another message before anybody heard of it


class Kind(str, Enum):
    """What a message says of its alert: that it fires, that it is over, or something that has no end."""

    FIRING = "firing"
    RESOLVED = "resolved"
    FACT = "fact"


class Message(Struct, eq=False):
    """Something to tell one receiver. `due` is monotonic seconds; `attempts` counts the failed ones.

    `seq` orders messages and names them on disk. Messages about one `alert` arrive in order.
    """

    seq: int
    id: str
    alert: str
    kind: Kind
    body: bytes
    attempts: int = 0
    due: float = 0.0
    in_flight: bool = False

    @property
    def firing(self) -> bool:
        return self.kind is Kind.FIRING


class Heard(Struct, frozen=True):
    """Whether a receiver has, or may have, heard that an alert fires, and in which words."""

    heard: bool
    body: bytes = b""


class Changes(Struct):
    """What differs from what is on disk, by name; what is there now is looked up when it is written."""

    messages: set[int] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)


class Queue:
    """Messages in order. Of each alert only the first is ever due, so nothing overtakes.

    A firing whose resolve comes before anybody heard of it is dropped together with that resolve. Once the
    receiver has heard of a firing, or may have (the connection broke after the request was sent), it gets
    its resolve. A resolve whose firing this queue never saw is delivered: somebody else may have told.
    """

    def __init__(self, most: int = WAITING_MOST) -> None:
        self.changes = Changes()
        self._most = most
        self._waiting: dict[int, Message] = {}
        self._heard: dict[str, Heard] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def restore(self, messages: Iterable[Message], heard: Iterable[tuple[str, Heard]]) -> None:
        """Take up what an earlier queue left, in its order."""
        self._waiting.update((message.seq, message) for message in messages)
        self._heard.update(heard)

    def message(self, seq: int) -> Message | None:
        return self._waiting.get(seq)

    def heard(self, alert: str) -> Heard | None:
        return self._heard.get(alert)

    def knows_of(self, alert: str) -> bool:
        """Whether anything was, or will be, said of it."""
        return alert in self._heard or bool(self._of(alert))

    def all(self) -> tuple[list[Message], dict[str, Heard]]:
        return list(self._waiting.values()), dict(self._heard)

    def firing_bodies(self) -> list[bytes]:
        """What the receiver was told of the alerts that fire, as far as it knows."""
        return [told.body for told in self._heard.values() if told.heard and told.body]

    def add(self, new: Message) -> list[Outcome]:
        """Put a message at the end; says what became of others, or of itself, because of it."""
        outcomes = self._drop_stale(new.alert) if new.kind is Kind.RESOLVED else []
        if self._says_nothing_new(new):
            return [*outcomes, Outcome.SUPERSEDED]
        outcomes += self._make_room()
        self._waiting[new.seq] = new
        self.changes.messages.add(new.seq)
        return outcomes

    def first_due(self, now: float) -> Message | None:
        return next((entry for entry in self._heads() if entry.due <= now and not entry.in_flight), None)

    def next_due(self) -> float | None:
        """When there will be something to do; None when nothing waits."""
        return min((entry.due for entry in self._heads() if not entry.in_flight), default=None)

    def hurry(self, now: float) -> None:
        """Let nothing wait for a later attempt."""
        for entry in self._waiting.values():
            entry.due = min(entry.due, now)

    def delivered(self, entry: Message) -> None:
        self._remove(entry)
        if entry.firing:
            self._hear(entry.alert, Heard(True, entry.body))
        else:
            self._forget(entry.alert)

    def failed(self, entry: Message, may_have_heard: bool) -> list[Outcome]:
        """After an attempt that failed: a firing that was resolved meanwhile is not tried again."""
        entry.in_flight = False
        entry.attempts += 1
        self.changes.messages.add(entry.seq)
        if not entry.firing:
            return []
        if may_have_heard:
            self._hear(entry.alert, Heard(True, entry.body))
        resolves = [other for other in self._of(entry.alert) if other.kind is Kind.RESOLVED]
        if not resolves:
            return []
        outcomes = self._drop_stale(entry.alert, up_to=resolves[-1])
        if self._forget_unheard(entry.alert):
            self._remove(resolves[-1])
            outcomes.append(Outcome.SUPERSEDED)
        return outcomes

    def give_up(self, entry: Message) -> None:
        self._remove(entry)
        if entry.firing and entry.alert not in self._heard:
            self._hear(entry.alert, Heard(False))

    def clear(self) -> int:
        """Drop everything; returns how much that was."""
        dropped = len(self._waiting)
        for entry in list(self._waiting.values()):
            self._remove(entry)
        for alert in list(self._heard):
            self._forget(alert)
        return dropped

    def keep_only(self, wanted: Callable[[str], bool]) -> None:
        """Forget alerts that the receiver is no longer to hear of."""
        for entry in [entry for entry in self._waiting.values() if not wanted(entry.alert)]:
            self._remove(entry)
        for alert in [alert for alert in self._heard if not wanted(alert)]:
            self._forget(alert)

    def _remove(self, entry: Message) -> None:
        self._waiting.pop(entry.seq, None)  # a receiver of other settings may have dropped it meanwhile
        self.changes.messages.add(entry.seq)

    def _hear(self, alert: str, heard: Heard) -> None:
        self._heard[alert] = heard
        self.changes.heard.add(alert)

    def _forget(self, alert: str) -> None:
        if self._heard.pop(alert, None) is not None:
            self.changes.heard.add(alert)

    def _of(self, alert: str) -> list[Message]:
        return [entry for entry in self._waiting.values() if entry.alert == alert]

    def _heads(self) -> Iterator[Message]:
        alerts: set[str] = set()
        for entry in self._waiting.values():
            if entry.alert not in alerts:
                alerts.add(entry.alert)
                yield entry

    def _says_nothing_new(self, new: Message) -> bool:
        """Whether the last word on the alert is the same, or a resolve follows a firing nobody heard of."""
        if new.kind is Kind.FACT:
            return False
        before = self._of(new.alert)
        if before:
            return before[-1].kind is new.kind
        return new.kind is Kind.RESOLVED and self._forget_unheard(new.alert)

    def _forget_unheard(self, alert: str) -> bool:
        """Whether the last firing was dropped before the receiver heard of it; true only once."""
        last = self._heard.get(alert)
        if last is None or last.heard:
            return False
        self._forget(alert)
        return True

    def _drop_stale(self, alert: str, up_to: Message | None = None) -> list[Outcome]:
        """Drop the alert's firings that are not being sent right now."""
        outcomes = []
        for entry in self._of(alert):
            if entry is up_to:
                break
            if entry.firing and not entry.in_flight:
                self.give_up(entry)
                outcomes.append(Outcome.SUPERSEDED)
        return outcomes

    def _make_room(self) -> list[Outcome]:
        """Let the oldest resolve go, or the oldest of all where none waits."""
        if len(self._waiting) < self._most:
            return []
        idle = [entry for entry in self._waiting.values() if not entry.in_flight]
        oldest = next((entry for entry in idle if entry.kind is Kind.RESOLVED), idle[0] if idle else None)
        if oldest is None:
            return []
        self.give_up(oldest)
        return [Outcome.GAVE_UP]
