"""Checks of arguments: sizes, counts, choices. An error has the name, the value, and one that would do."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeVar

from memwatch.core.model import MAX_BYTES
from memwatch.core.printable import printable

T = TypeVar("T")

SIZE = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,9})?)\s*(?:([KMGTPE])(i?)B?|B)?", re.ASCII | re.IGNORECASE)


class InvalidInputError(ValueError):
    """Invalid input. The message names the option, its value and a valid example."""


class UnknownModelError(InvalidInputError):
    """The need of a model is not known: its files cannot be read, or have a structure that is not known."""


def parse_bytes(value: object, name: str = "size") -> int:
    """Parse "20GiB", "512 MiB", "24GB" (powers of 1000) or a number of bytes."""
    found: object = value
    if isinstance(value, str) and (match := SIZE.fullmatch(value.strip())):
        power = "KMGTPE".index(match[2].upper()) + 1 if match[2] else 0
        found = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if isinstance(found, bool) or not isinstance(found, int) or found <= 0:
        raise InvalidInputError(f'{name} is {quote(value)}, which is not a size above zero; for example "20GiB"')
    if found >= MAX_BYTES:
        raise InvalidInputError(
            f'{name} is {quote(value)}, which is not below the limit of 1EiB; for example "20GiB"'
        )
    return found


def check_count(value: object, name: str, example: int, minimum: int = 1, maximum: int = 1 << 40) -> int:
    """Return `value` if it is a whole number within bounds. Raises InvalidInputError."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        words = f"a whole number from {minimum} to {maximum}"
        raise InvalidInputError(f"{name} is {quote(value)}, which is not {words}; for example {example}")
    return value


def check_dtype_bytes(value: object, name: str = "dtype_bytes") -> float:
    """Return `value` as bytes per number (2 for bfloat16, 0.5 for 4 bits). Raises InvalidInputError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.125 <= value <= 16:
        raise InvalidInputError(
            f"{name} is {quote(value)}, which is not from 0.125 to 16 bytes; for example 2 (bfloat16)"
        )
    return float(value)


def quote(value: object) -> str:
    """Return a value as it is shown in a message, of bounded length."""
    text = f'"{value}"' if isinstance(value, str) else _number(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _number(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


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
