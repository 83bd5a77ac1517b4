"""Values that are read in turns, so that a reading takes one call for them at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from memwatch.core.drivers.nvml.query import Query


class Rotation:
    """Named queries: all of them the first time, then one each time it is due, in the same order again and again.

    A full turn takes `period_seconds` if readings are frequent enough for one call each.
    """

    def __init__(self, questions: Iterable[tuple[str, Query[Any]]], period_seconds: float) -> None:
        self.values: dict[str, Any] = {}
        self._questions = deque(questions)
        self._first = self._questions[0][0]
        self._pause_seconds = period_seconds / len(self._questions)
        self._next_at: float | None = None

    @property
    def next_at(self) -> float:
        """Time of the next call. Negative infinity if all values are to be read."""
        return float("-inf") if self._next_at is None else self._next_at

    @property
    def is_complete(self) -> bool:
        """True at the end of a turn."""
        return self._questions[0][0] == self._first

    def ask(self, now: float) -> None:
        for _ in range(len(self._questions) if self._next_at is None else 1):
            name, question = self._questions[0]
            self._questions.rotate(-1)
            self.values[name] = question.ask()
        self._next_at = now + self._pause_seconds

    def expire(self) -> None:
        """Read all values the next time."""
        self._next_at = None
