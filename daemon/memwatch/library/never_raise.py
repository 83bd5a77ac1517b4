"""What is called from a training step must not end it: the one place here where anything may be caught."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

log = logging.getLogger("memwatch")

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")
_said: set[str] = set()
MOST_SAID = 100


def harmless(otherwise: D) -> Callable[[Callable[P, R]], Callable[P, R | D]]:
    """The function, or `otherwise` where it fails; the same failure is logged once."""

    def of(function: Callable[P, R]) -> Callable[P, R | D]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | D:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  watching memory is never worth a lost step
                complain(f"{function.__name__} failed: {type(error).__name__}: {error}")
                return otherwise

        return call

    return of


def complain(sentence: str) -> None:
    """Once for each sentence."""
    if sentence not in _said and len(_said) < MOST_SAID:
        _said.add(sentence)
        log.warning("%s", sentence)
