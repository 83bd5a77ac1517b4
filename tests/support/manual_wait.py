"""Waits of threads whose clock is set by a test."""

from __future__ import annotations

import threading

from support.waiting import wait_until

LOOK_SECONDS = 0.005


class ManualWait:
    """Wait that ignores the pause: the thread looks at its clock again after 5 ms, or when it is notified."""

    def __init__(self) -> None:
        self._looks = 0

    def __call__(self, waiting: threading.Event | threading.Condition, _seconds: float | None) -> None:
        self._looks += 1
        waiting.wait(LOOK_SECONDS)

    def settle(self) -> None:
        """Return when the thread has looked twice from now on, and found nothing to do."""
        wanted = self._looks + 2
        wait_until(lambda: self._looks >= wanted)
