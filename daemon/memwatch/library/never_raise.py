"""Decorator for functions called from a training step, which must not raise. The only catch-all of the library."""

from __future__ import annotations

import logging
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
    """Decorate a function to return `otherwise` if it raises. The same failure is logged once."""

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
