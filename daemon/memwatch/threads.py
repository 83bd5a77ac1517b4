"""Threads that must run some time: the system may have none to give just now (pids.max, ulimit -u, memory)."""

from __future__ import annotations

import logging
import threading
from weakref import WeakSet

log = logging.getLogger(__name__)

_waiting: WeakSet[threading.Thread] = WeakSet()


def started(thread: threading.Thread) -> bool:
    """Start a thread that has not begun; false where there is none to be had. Ask again as often as you like.

    The log says so once, and once that it runs after all.
    """
    if thread.ident is not None:
        return True
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if thread not in _waiting:
            log.error("%s waits for a thread to run in: %s", thread.name, str(error) or "out of memory")
        _waiting.add(thread)
        return False
    if thread in _waiting:
        log.warning("%s has a thread and runs", thread.name)
        _waiting.discard(thread)
    return True
