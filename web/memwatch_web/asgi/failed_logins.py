"""Failed logins by client: counted, logged at most once a minute, and limited."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from msgspec import Struct

log = logging.getLogger(__name__)

# Failures of one origin before its passwords are refused unchecked; one more is allowed every 6 s.
MAX_FAILURES, WINDOW_SECONDS = 10, 60.0
LOG_SECONDS = 60.0
MAX_ORIGINS = 1024


class FailureCount(Struct):
    """Failures of one origin. `level` falls by MAX_FAILURES in WINDOW_SECONDS. `unlogged`: since the last line."""

    level: float
    at: float
    logged_at: float
    unlogged: int = 0


class FailedLogins:
    """Table of the latest origins of failed logins. Not thread-safe: for the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self._clock = clock
        self._origins: dict[str, FailureCount] = {}

    def add(self, origin: str, reason: str) -> None:
        """Count a failure. The first one of an origin is logged at once, later ones by `log_counts`.

        Failures of an origin that has to wait do not prolong its wait: other users may share its address.
        """
        self.total += 1
        now = self._clock()
        count = self._origins.get(origin)
        if count is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins.pop(next(iter(self._origins)))
            self._origins[origin] = FailureCount(1.0, now, now)
            log.warning("failed login from %s: %s", origin, reason)
            return
        if not self.wait_seconds(origin):
            count.level, count.at = self._level(count, now) + 1, now
        count.unlogged += 1

    def wait_seconds(self, origin: str) -> int:
        """Return the time until an origin may try again, 0 if it may now."""
        count = self._origins.get(origin)
        level = 0.0 if count is None else self._level(count, self._clock())
        return (
            math.ceil((level - MAX_FAILURES + 1) * WINDOW_SECONDS / MAX_FAILURES) if level > MAX_FAILURES - 1 else 0
        )

    def has_failed_from(self, client: str) -> bool:
        """Return True if the table has an origin of this client."""
        return any(origin.partition(" ")[0] == client for origin in self._origins)

    def log_counts(self) -> bool:
        """Log the failures since the last line of each origin. Return False if the table is empty."""
        now = self._clock()
        for origin, count in list(self._origins.items()):
            if now - count.logged_at < LOG_SECONDS:
                continue
            if count.unlogged:
                log.warning("%d more failed logins from %s in the last minute", count.unlogged, origin)
            elif not self._level(count, now):
                del self._origins[origin]
            count.logged_at, count.unlogged = now, 0
        return bool(self._origins)

    @staticmethod
    def _level(count: FailureCount, now: float) -> float:
        return max(0.0, count.level - (now - count.at) * MAX_FAILURES / WINDOW_SECONDS)
