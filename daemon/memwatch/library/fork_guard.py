"""Imports in threads of the library, for which a fork waits.

A module is locked while it is imported. If another thread forks meanwhile, it stays locked in the child, as the
importing thread does not exist there, and the child waits for ever at the same import.
"""

from __future__ import annotations

import os
import threading

# A fork is not held up for longer. Importing what reads the machine takes 0.1 s.
MAX_WAIT_SECONDS = 1.0


class ForkGuard:
    """Guard for `with importing: import …` in a thread that the program knows nothing of."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_held = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        self._is_held = self._lock.acquire(timeout=MAX_WAIT_SECONDS)

    def after_in_parent(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()

    def after_in_child(self) -> None:
        self.__init__()  # type: ignore[misc]


importing: ForkGuard = ForkGuard()
os.register_at_fork(
    before=importing.before_fork,
    after_in_parent=importing.after_in_parent,
    after_in_child=importing.after_in_child,
)
