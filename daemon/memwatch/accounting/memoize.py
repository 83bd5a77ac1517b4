"""Pure rules that are asked the same again and again: most things about a machine are what they were a tick ago."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import is_
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def memoize(make: Callable[P, R]) -> Callable[P, R]:
    """The same rule, which answers with what it made the time before where it is given the very same objects.

    For rules that depend on nothing else. What they are given must be immutable; where something is given by its
    name, it is made anew. Any thread may ask.
    """
    last: tuple[tuple[object, ...], R] | None = None

    @wraps(make)
    def wrapper(*args: P.args, **named: P.kwargs) -> R:
        nonlocal last
        if (kept := last) is not None and not named:
            before, found = kept
            if len(args) == len(before) and all(map(is_, args, before)):
                return found
        found = make(*args, **named)
        last = None if named else (args, found)
        return found

    return wrapper
