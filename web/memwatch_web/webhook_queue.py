"""What is still to be told to one receiver, and what no longer needs to be. Pure bookkeeping, no lock, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

WAITING_MOST = 1000


class Outcome(str, Enum):
    """What became of a notice, or of one attempt to deliver it."""

    DELIVERED = "delivered"  # the receiver answered 2xx
    RETRY = "retry"  # the attempt failed; there will be another
    GAVE_UP = "gave_up"  # the last attempt of the schedule failed, or too many notices waited
    DISABLED = "disabled"  # the receiver has answered 410 and wants nothing any more
    SUPERSEDED = "superseded"  # made pointless by a later notice before anybody heard of it


@dataclass(slots=True, eq=False)
class Waiting:
    """A notice on its way. `due` is monotonic seconds; `attempts` counts the failed ones."""

    id: str
    target: str
    firing: bool
    body: bytes
    due: float
    attempts: int = 0
    in_flight: bool = False


class Queue:
    """Notices in order. Of each target only the first is ever due, so nothing overtakes.

    A firing whose resolve comes before anybody heard of it is dropped together with that resolve. Once the
    receiver has heard of a firing, or may have (the connection broke after the request was sent), it gets
    its resolve. A resolve whose firing this queue never saw is delivered: somebody else may have told.
    """

    def __init__(self, most: int = WAITING_MOST) -> None:
        self._most = most
        self._waiting: list[Waiting] = []
        self._heard: dict[str, bool] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, new: Waiting) -> list[Outcome]:
        """Put a notice at the end; says what became of others, or of itself, because of it."""
        outcomes = [] if new.firing else self._drop_stale(new.target)
        if not new.firing and self._says_nothing_new(new.target):
            return [*outcomes, Outcome.SUPERSEDED]
        outcomes += self._make_room()
        self._waiting.append(new)
        return outcomes

    def first_due(self, now: float) -> Waiting | None:
        return next((entry for entry in self._heads() if entry.due <= now), None)

    def next_due(self) -> float | None:
        """When there will be something to do; None when nothing waits."""
        return min((entry.due for entry in self._heads()), default=None)

    def delivered(self, entry: Waiting) -> None:
        self._waiting.remove(entry)
        if entry.firing:
            self._heard[entry.target] = True
        else:
            self._heard.pop(entry.target, None)

    def failed(self, entry: Waiting, may_have_heard: bool) -> list[Outcome]:
        """After an attempt that failed: a firing that was resolved meanwhile is not tried again."""
        entry.in_flight = False
        entry.attempts += 1
        if not entry.firing:
            return []
        if may_have_heard:
            self._heard[entry.target] = True
        resolves = [other for other in self._of(entry.target) if not other.firing]
        if not resolves:
            return []
        outcomes = self._drop_stale(entry.target, up_to=resolves[-1])
        if self._forget_unheard(entry.target):
            self._waiting.remove(resolves[-1])
            outcomes.append(Outcome.SUPERSEDED)
        return outcomes

    def give_up(self, entry: Waiting) -> None:
        self._waiting.remove(entry)
        if entry.firing:
            self._heard.setdefault(entry.target, False)

    def clear(self) -> int:
        """Drop everything; returns how much that was."""
        dropped = len(self._waiting)
        self._waiting.clear()
        self._heard.clear()
        return dropped

    def _of(self, target: str) -> list[Waiting]:
        return [entry for entry in self._waiting if entry.target == target]

    def _heads(self) -> Iterator[Waiting]:
        targets: set[str] = set()
        for entry in self._waiting:
            if entry.target not in targets:
                targets.add(entry.target)
                yield entry

    def _says_nothing_new(self, target: str) -> bool:
        """Whether a resolve would follow another resolve, or a firing that nobody heard of."""
        before = self._of(target)
        return not before[-1].firing if before else self._forget_unheard(target)

    def _forget_unheard(self, target: str) -> bool:
        """Whether the last firing was dropped before the receiver heard of it; true only once."""
        if self._heard.get(target, True):
            return False
        del self._heard[target]
        return True

    def _drop_stale(self, target: str, up_to: Waiting | None = None) -> list[Outcome]:
        """Drop the target's firings that are not being sent right now."""
        outcomes = []
        for entry in self._of(target):
            if entry is up_to:
                break
            if entry.firing and not entry.in_flight:
                self._waiting.remove(entry)
                self._heard.setdefault(target, False)
                outcomes.append(Outcome.SUPERSEDED)
        return outcomes

    def _make_room(self) -> list[Outcome]:
        if len(self._waiting) < self._most:
            return []
        for entry in self._waiting:
            if not entry.in_flight:
                self.give_up(entry)
                return [Outcome.GAVE_UP]
        return []
