"""Names and texts from outside memwatchd, made safe for terminals, logs and pages.

Apply these where a text is read: a process, a container, a driver or a recording may choose its content.
"""

from __future__ import annotations

import re
from typing import Any

_LONG_ID = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")


def printable(text: str) -> str:
    r"""Escape characters that do not print: "\u001b" for ESC.

    These are control characters (C0, DEL, C1), newlines and line separators, bidirectional controls and lone
    surrogates. A name without any, which is nearly every name, costs 60 ns (CPython 3.11).
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def decode(data: bytes) -> str:
    """Decode a name from a file. Invalid UTF-8 and characters that do not print are escaped."""
    return printable(data.decode("utf-8", "backslashreplace"))


def printable_lines(text: str) -> str:
    """Escape like `printable`, but keep newlines: for a text whose lines are memwatchd's own."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def shorten_ids(text: str) -> str:
    """Cut each id of a container to its first 12 digits, as docker ps shows it."""
    return _LONG_ID.sub(r"\1", text)


def describe_error(error: BaseException) -> str:
    """Return why a call of the system failed, in lower case: "no space left on device"."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def printable_parts(value: Any) -> Any:  # noqa: ANN401  JSON is anything
    """Escape every text in decoded JSON, keys included."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_parts(part) for part in value]
    if isinstance(value, dict):
        return {printable(name): printable_parts(part) for name, part in value.items()}
    return value


def _escape(char: str) -> str:
    number = ord(char)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
