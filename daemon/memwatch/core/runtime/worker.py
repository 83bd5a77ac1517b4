"""Threads that are started as soon as possible, the pauses between their failed attempts, and a limit of their log
lines about failures that repeat.

Starting a thread may fail (pids.max, ulimit -u, out of memory).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import Enum

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


log: logging.Logger = logging.getLogger(__name__)


class ThreadState(Enum):
    """State of a thread that should work. The value says why it does not, and what to do."""

    OK = ""
    NOT_STARTED = "it cannot be started yet; raise the limit of threads or free memory"
    ENDED = "it has ended; restart memwatchd"
    STUCK = "its current step does not end; restart memwatchd"
    DISK_HANGS = "the disk does not complete a write; check the disk of the state folder"


class Worker:
    """A function that runs in its own thread, which is started as soon as the system permits. Thread-safe."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work, self._name = work, name
        self._thread: threading.Thread | None = None
        self._waits = False
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Start the thread, once. Return False if that fails now; call again to retry.

        The first failure and a later success are logged.
        """
        if self._thread is not None:
            return True
        with self._lock:
            return self._thread is not None or self._start()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)  # 3.13 cannot retry start()
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not self._waits:
                log.error("%s cannot start a thread, retrying: %s", self._name, str(error) or "out of memory")
            self._waits = True
            return False
        if self._waits:
            log.warning("%s has started its thread", self._name)
        self._thread = thread
        del self._work  # the function may own this object: break the reference cycle
        return True

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def state(self) -> ThreadState:
        if self._thread is None:
            return ThreadState.NOT_STARTED
        return ThreadState.OK if self._thread.is_alive() else ThreadState.ENDED

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for the thread's end."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))


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
