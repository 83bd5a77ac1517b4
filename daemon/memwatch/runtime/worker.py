"""Threads that must run some time: the system may have none to give just now (pids.max, ulimit -u, memory)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Worker:
    """Work for a thread of its own, which begins when one is to be had."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work, self._name = work, name
        self._thread: threading.Thread | None = None
        self._waits = False

    def begin(self) -> bool:
        """False where there is no thread now. Ask again as often as you like: it begins once.

        The log says once that it waits, and that it runs after all.
        """
        if self._thread is not None:
            return True
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)  # 3.13 starts none a second time
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not self._waits:
                log.error("%s waits for a thread to run in: %s", self._name, str(error) or "out of memory")
            self._waits = True
            return False
        if self._waits:
            log.warning("%s has a thread and runs", self._name)
        self._thread = thread
        del self._work  # whoever owns this may be what works, and would not go when all is done
        return True

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))
