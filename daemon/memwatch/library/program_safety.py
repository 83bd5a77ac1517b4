"""Protection of the program that uses the library: no exception in a training step, and no fork that hangs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from memwatch.core.printable import printable

log: logging.Logger = logging.getLogger("memwatch")

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")
_logged: set[str] = set()
MAX_LOGGED = 100


def never_raise(otherwise: D) -> Callable[[Callable[P, R]], Callable[P, R | D]]:
    """Decorate a function to return `otherwise` if it raises. The same failure is logged once.

    This is the only catch-all of the library, for functions called from a training step.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R | D]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | D:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  monitoring must never fail a step
                log_once(f"{function.__name__} failed: {type(error).__name__}: {error}")
                return otherwise

        return call

    return decorate


def log_once(sentence: str) -> bool:
    """Log a warning in one line, once per sentence: it may quote what another program sent.

    Returns False if it was logged before.
    """
    sentence = printable(sentence)
    if sentence in _logged or len(_logged) >= MAX_LOGGED:
        return False
    _logged.add(sentence)
    log.warning("%s", sentence)
    return True


# A fork is not held up for longer. Importing what reads the machine takes 0.1 s.
MAX_WAIT_SECONDS = 1.0


class ForkGuard:
    """Guard for `with importing: import …` in a thread of the library, for which a fork waits.

    A module is locked while it is imported. If another thread forks meanwhile, it stays locked in the child, as the
    importing thread does not exist there, and the child waits for ever at the same import.
    """

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
