"""Options that users set: typed keys with defaults, bounds, accepted values and documentation."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Struct

KeyPath = tuple[str | int, ...]

DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|min|h|d)?", re.ASCII)
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?:([KMGT])(i?)B|B)?", re.ASCII)
HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*\.?")
# sun_path in Linux's sockaddr_un holds 108 bytes with its NUL; macOS has 104.
MAX_SOCKET_PATH_BYTES = 103


class InvalidValueError(ValueError):
    """A value that cannot be used.

    The message, if any, gives the reason in words that can follow the setting's name ("names a file that …").
    `keys` are the settings at fault, relative to the section, where that is not the value itself. `has_example` is
    false where the value is written correctly and the thing that it names is at fault: an example would not help.
    """

    def __init__(self, why: str = "", keys: tuple[KeyPath, ...] = (), has_example: bool = True) -> None:
        super().__init__(why)
        self.keys = keys
        self.has_example = has_example


class Section(Struct, frozen=True):
    """A table of the configuration file: declared keys only, immutable.

    `__post_init__` of a subclass raises `InvalidValueError` for values that are not valid together.
    """


class SwitchableOptions(Section, frozen=True, kw_only=True):
    """Options of a part that can be switched off."""

    enabled: bool = True


class Accepts(Struct, frozen=True):
    """Accepted values, in words that follow "which is not", and an example.

    Without an example the default is one. `shown` is false for a setting whose value must not be repeated
    in a message.
    """

    words: str
    example: str = ""
    shown: bool = True


class Converter(Struct, frozen=True):
    """Parses the given value; the function raises `InvalidValueError` for a value that it cannot use."""

    function: Callable[[Any], object]


class Bounds(Struct, frozen=True):
    """Minimum and maximum; `above`: the minimum itself is excluded."""

    minimum: float | timedelta
    maximum: float | timedelta
    above: bool = False

    def hold(self, value: Any) -> bool:  # noqa: ANN401  a number or a timedelta, as the bounds are
        return bool(self.minimum <= value <= self.maximum) and not (self.above and value == self.minimum)

    def __str__(self) -> str:
        return f"from {bound_text(self.minimum)} to {bound_text(self.maximum)}"


def bound_text(bound: float | timedelta) -> str:
    if isinstance(bound, timedelta):
        return duration_text(bound)
    return bound.text if isinstance(bound, Size) else f"{bound:g}"


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def parse_duration(value: object) -> timedelta:
    """Parse a duration: "500ms", "1s", "5m" or "5 min", "1h", "30d", or a number of seconds."""
    if isinstance(value, str):
        match = DURATION.fullmatch(value.strip())
        if match is None:
            raise InvalidValueError
        value = float(match[1]) * UNITS[match[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidValueError from None


def duration_text(duration: timedelta) -> str:
    """Format a duration in the largest unit that keeps it a whole number; one day is 24 hours."""
    microseconds = duration // timedelta(microseconds=1)
    if duration.days > 1 and not duration % timedelta(days=1):
        return f"{duration.days}d"
    for unit in ("h", "m", "s"):
        size = int(UNITS[unit] * 1_000_000)
        if microseconds % size == 0 and microseconds:
            return f"{microseconds // size}{unit}"
    whole, rest = divmod(microseconds, 1000)
    return f"{whole}{f'.{rest:03}'.rstrip('0') if rest else ''}ms" if microseconds else "0s"


Duration = Annotated[timedelta, Converter(parse_duration)]


class Size(int):
    """A number of bytes with its text form."""

    @property
    def text(self) -> str:
        """Format in the largest binary unit that keeps it a whole number."""
        for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
            if self and self % 1024**power == 0:
                return f"{self // 1024**power}{letter}iB"
        return f"{int(self)}B"


def parse_size(value: object) -> Size:
    """Parse a size: "20GiB", "512 MiB", "24GB" (decimal), or a number of bytes; at least one byte."""
    if isinstance(value, str) and (match := SIZE.fullmatch(value.strip())):
        power = "KMGT".index(match[2]) + 1 if match[2] else 0
        value = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 60:
        raise InvalidValueError
    return Size(value)


def parse_socket(value: object) -> str:
    """Return the path of a socket file from unix:/PATH."""
    if not isinstance(value, str) or not value.startswith("unix:"):
        raise InvalidValueError
    path = value.removeprefix("unix:")
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidValueError
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise InvalidValueError(
            f"has a path longer than the {MAX_SOCKET_PATH_BYTES} bytes that a socket's name may have"
        )
    return path


# A program by its path, or the one on PATH.
AUTO = "auto"


def program_path(value: object) -> str:
    """Accept a program's absolute path, or "auto" for the one on PATH. The program may be installed later."""
    if isinstance(value, str) and (value == "auto" or os.path.isabs(value)) and "\0" not in value:
        return value
    raise InvalidValueError


def parse_host(value: object) -> str:
    """Parse a host name or an IPv4 address; return it in lower case."""
    if not isinstance(value, str) or not HOST_NAME.fullmatch(value):
        raise InvalidValueError
    if re.fullmatch(r"[0-9.]+", value):
        try:
            ipaddress.IPv4Address(value)
        except ValueError:
            raise InvalidValueError from None
    return value.lower()


class ConfigState(Struct, frozen=True):
    """`problems`: a sentence for each setting that is not in force.

    `is_loaded`: the latest start or reload took the configuration as it is. `loaded_unix`: when one did; None if it
    has not happened since memwatchd started.
    """

    problems: tuple[str, ...] = ()
    is_loaded: bool = True
    loaded_unix: float | None = None

    @property
    def notice(self) -> str:
        """Return the state as a part of a line, empty if everything is in force."""
        if not self.problems:
            return ""
        problems = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return f"configuration not in force: {problems}, see memwatch doctor"
