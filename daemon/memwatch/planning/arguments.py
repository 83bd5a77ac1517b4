"""Checks of arguments. A wrong one raises InvalidInputError, with its name, its value and one that would do."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeVar

from memwatch.core.printable import printable
from memwatch.planning.sizes import InvalidInputError, quote

T = TypeVar("T")


def describe(value: object) -> str:
    """Return a value as a message shows it. An object is shown by its class: its repr may be long, or raise."""
    if value is None or isinstance(value, str | int | float):
        return printable(quote(value))
    return (
        f"the class {value.__name__}" if isinstance(value, type) else f"an object of class {type(value).__name__}"
    )


def refuse(value: object, name: str, wanted: str, example: str) -> InvalidInputError:
    """Return the error for a value which is not `wanted`."""
    return InvalidInputError(f"{name} is {describe(value)}, which is not {wanted}; for example {example}")


def check_text(value: object, name: str, example: str) -> str:
    if not isinstance(value, str):
        raise refuse(value, name, "a text", f'"{example}"')
    return value


def check_choice(value: object, name: str, choices: Collection[str], example: str) -> str:
    if not isinstance(value, str) or value not in choices:
        raise refuse(value, name, f"one of {', '.join(choices)}", example)
    return value


def check_flag(value: object, name: str, example: bool) -> bool:
    if not isinstance(value, bool):
        raise refuse(value, name, "True or False", str(example))
    return value


def check_seconds(value: object, name: str, example: float) -> float:
    """Return a time that is neither negative nor infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise refuse(value, name, "a number of seconds from 0 to 1e9", str(example))
    return value


def check_interval(value: object, name: str = "interval", example: float = 0.5) -> float:
    """Return a time between two readings, from 10 ms to an hour."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 3600:
        raise refuse(value, name, "from 0.01 to 3600 seconds", str(example))
    return value


def check_kind(value: object, name: str, kind: type[T], example: str) -> T:
    if not isinstance(value, kind):
        raise refuse(value, name, f"a {kind.__name__}", example)
    return value


def check_function(value: object, name: str, example: str) -> None:
    if not callable(value):
        raise refuse(value, name, "a function", example)


def check_path(value: object, name: str, example: str) -> Path:
    """Return the path of a file or folder, which need not exist."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise refuse(value, name, "a path", f'"{example}"')
    return Path(text)


def check_folder(value: object, name: str = "folder", example: str = "autopsies") -> Path | None:
    """Return a folder, which is created when it is needed. None without one."""
    if value is None:
        return None
    found = check_path(value, name, example)
    if os.path.exists(found) and not os.path.isdir(found):
        raise refuse(str(found), name, "a folder, but a file", f'"{example}"')
    return found


def check_members(value: object, name: str, members: Iterable[str], kind: str, example: str) -> None:
    """Check that an object, which is no class, has the methods of a kind of object."""
    missing = [one for one in members if not callable(getattr(value, one, None))]
    if missing or isinstance(value, type):
        lacks = "no object of one" if isinstance(value, type) else f"no {kind}: it has no {missing[0]}()"
        raise InvalidInputError(f"{name} is {describe(value)}, which is {lacks}; for example {example}")
