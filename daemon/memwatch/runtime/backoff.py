"""Exponential backoff."""

from __future__ import annotations


class Patience:
    """Exponential backoff: no pause before the first attempt, then a pause that doubles up to `longest_seconds`.

    Times are monotonic seconds.
    """

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
        """Reset the pause after a success. The pause since the last attempt still applies."""
        self._pause = self._first
