"""Checks of every result, for any input: numbers are finite, not negative, and occur in the input."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

NUMBER = re.compile(rb"\d+")
# Longer digits are rejected by every parser, and take long to convert.
MAX_DIGITS = 40
UNITS = (1, 1 << 10, 1 << 20, 1 << 30)


def numbers_in(value: Any) -> Iterator[int | float]:
    """Yield every number in a result, at any depth."""
    if isinstance(value, (bool, Enum, str, bytes)) or value is None:
        return
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, Struct):
        yield from numbers_in(asdict(value))
    elif is_dataclass(value):  # settings
        yield from numbers_in([getattr(value, one.name) for one in fields(value)])
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from numbers_in(part)
    else:
        for part in value:
            yield from numbers_in(part)


def are_valid(value: Any) -> None:
    """Check that no number is negative, infinite or NaN."""
    for number in numbers_in(value):
        assert math.isfinite(number), f"{number} in {value!r:.300}"
        assert number >= 0, f"{number} in {value!r:.300}"


def numbers_of(data: bytes) -> set[int]:
    """Return the numbers in the input."""
    return {int(digits) for digits in NUMBER.findall(data) if len(digits) <= MAX_DIGITS}


def are_in_input(value: Any, data: bytes, *, units: tuple[int, ...] = UNITS) -> None:
    """Check that every number is one of the input in one of the units; none is invented or added."""
    known = {number * unit for number in numbers_of(data) for unit in units}
    for number in numbers_in(value):
        assert number in known, f"{number} of {value!r:.300} is nowhere in {data!r:.300}"


def at_most_sum_of_input(value: Any, data: bytes) -> None:
    """Check that no number exceeds the sum of all numbers of the input, in the largest unit."""
    most = sum(numbers_of(data)) * UNITS[-1]
    for number in numbers_in(value):
        assert number <= most, f"{number} of {value!r:.300} is more than all of {data!r:.300}"


@contextmanager
def as_file(data: bytes, suffix: str = "") -> Iterator[Path]:
    """Write the bytes to a file on disk and yield its path."""
    with tempfile.NamedTemporaryFile(prefix="memwatch-fuzz-", suffix=suffix) as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
