"""Exponential backoff."""

from __future__ import annotations


class Backoff:
    """Exponential backoff: no pause before the first attempt, then a pause that doubles up to `max_seconds`.

    Times are monotonic seconds.
    """

    def __init__(self, first_seconds: float, max_seconds: float = 60.0) -> None:
        self._first = first_seconds
        self._longest = max(max_seconds, first_seconds)
        self._pause = first_seconds
        self._not_before = float("-inf")

    def is_due(self, now: float) -> bool:
        return now >= self._not_before

    def seconds_left(self, now: float) -> float:
        return max(0.0, self._not_before - now)

    def failed(self, now: float) -> None:
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, self._longest)

    def end(self) -> None:
        """End the pause: the next attempt is due now, and the pause after it is the first one again."""
        self._pause = self._first
        self._not_before = float("-inf")

    def reset(self) -> None:
        """Reset the pause after a success. The pause since the last attempt still applies."""
        self._pause = self._first
