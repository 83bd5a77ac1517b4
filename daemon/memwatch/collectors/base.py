"""The interface of a collector: what it is given, what it returns, how it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from msgspec import Struct

from memwatch.findings import Findings


class Collector(Protocol):
    """Reads one part of the machine. Its constructor takes what it needs, or raises `Unavailable`.

    `name` is the word in metrics and on the page. `period_seconds` is how often to ask; 0 means every tick.
    `may_block` is true for one whose reads can wait for somebody (a process, a driver): such a
    collector gets a thread of its own and never delays a tick. `collect` raises `Unreadable` or `OSError`
    when reading fails; any other exception is a defect and is counted as one. A collector that holds a
    device also has `release(seconds)`: let go of it, so that an administrator can reset it. One that may be
    asked more often when memory is nearly full has `hurried_seconds`, the least time between two answers then. One
    that may block, and hardly ever does, can be `Prompt` as well, and one that tells System RAM a `Watcher`.
    """

    name: str
    period_seconds: float
    may_block: bool

    def collect(self) -> Findings: ...

    def close(self) -> None: ...


@runtime_checkable
class Prompt(Protocol):
    """A collector that may block, and whose answer mostly comes within a tick's time: somebody else works on it.
    Neither method raises."""

    def put(self) -> bool:
        """Put the question at once; False where that would take time, and nothing was put."""
        ...

    def has_answer(self, seconds: float) -> bool:
        """Whether `collect` would return at once, now or within so many seconds."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A collector that can see at little cost whether its figure for System RAM is still what it was."""

    def moved_bytes(self) -> int:
        """How far what is available is now from what `collect` last said. Raises what `collect` raises."""
        ...


class Enlisted(Struct, frozen=True):
    """An entry of the list of collectors: `make` builds it, or raises `Unavailable` on a machine without it."""

    name: str
    make: Callable[[], Collector]
    may_block: bool
