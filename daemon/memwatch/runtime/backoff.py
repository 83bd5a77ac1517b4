"""When to try again."""

from __future__ import annotations


class Patience:
    """At once the first time, then ever more rarely as long as it does not help. Times are monotonic seconds."""

    def __init__(self, first_seconds: float, longest_seconds: float = 60.0) -> None:
        self._first = first_seconds
        self._longest = max(longest_seconds, first_seconds)
        self._pause = first_seconds
        self._not_before = float("-inf")

    def is_over(self, now: float) -> bool:
        return now >= self._not_before

    def tried(self, now: float) -> None:
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, self._longest)

    def helped(self) -> None:
        """All is well: the next trouble is a new one. It still keeps its distance from the last try."""
        self._pause = self._first
