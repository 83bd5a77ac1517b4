"""Limit of log lines about failures that repeat, alternate with successes, or have another text each time."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEAT_SECONDS = 60.0
MAX_TEXTS = 5


class FailureLog:
    """Decide which failures are logged: each text once a minute, and at most MAX_TEXTS texts a minute."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._logged: dict[str, float] = {}
        self._is_open = False

    def admits(self, text: str) -> bool:
        """Return True if this failure is to be logged now."""
        now = self._monotonic()
        self._logged = {known: at for known, at in self._logged.items() if now - at < REPEAT_SECONDS}
        if text in self._logged or len(self._logged) >= MAX_TEXTS:
            return False
        self._logged[text] = now
        self._is_open = True
        return True

    def admits_recovery(self) -> bool:
        """Return True if a recovery is to be logged: once for the failures that were logged before it."""
        was_open, self._is_open = self._is_open, False
        return was_open
