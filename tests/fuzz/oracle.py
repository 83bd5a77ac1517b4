"""What holds of every result, whatever the bytes were: figures are finite, not negative, and somebody said them."""

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
# A longer row of digits is refused by every parser, and takes long to convert.
MOST_DIGITS = 40
UNITS = (1, 1 << 10, 1 << 20, 1 << 30)


def numbers_in(value: Any) -> Iterator[int | float]:
    """Every number in a result, however deep it lies."""
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


def are_figures(value: Any) -> None:
    """No figure is negative, infinite or no number at all."""
    for number in numbers_in(value):
        assert math.isfinite(number), f"{number} in {value!r:.300}"
        assert number >= 0, f"{number} in {value!r:.300}"


def said(data: bytes) -> set[int]:
    """The numbers that stand in the input."""
    return {int(digits) for digits in NUMBER.findall(data) if len(digits) <= MOST_DIGITS}


def are_said(value: Any, data: bytes, *, units: tuple[int, ...] = UNITS) -> None:
    """Every figure is a number of the input in one of the units; nothing was made up or added."""
    known = {number * unit for number in said(data) for unit in units}
    for number in numbers_in(value):
        assert number in known, f"{number} of {value!r:.300} is nowhere in {data!r:.300}"


def at_most_said(value: Any, data: bytes) -> None:
    """No figure is above the sum of all that the input says, in the largest unit."""
    most = sum(said(data)) * UNITS[-1]
    for number in numbers_in(value):
        assert number <= most, f"{number} of {value!r:.300} is more than all of {data!r:.300}"


@contextmanager
def as_file(data: bytes, suffix: str = "") -> Iterator[Path]:
    """The bytes as a file on disk."""
    with tempfile.NamedTemporaryFile(prefix="memwatch-fuzz-", suffix=suffix) as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
