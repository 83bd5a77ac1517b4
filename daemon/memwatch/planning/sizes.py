"""Validation of user input: sizes and counts."""

from __future__ import annotations

import re

from memwatch.core.model import MAX_BYTES

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
