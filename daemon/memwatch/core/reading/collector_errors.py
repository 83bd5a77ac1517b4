"""Errors of collectors: the reason under which they are counted, and their message."""

from __future__ import annotations

from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatch.core.printable import printable


def classify_error(error: Exception) -> str:
    """Return the reason under which an error is counted."""
    if isinstance(error, PermissionError):
        return "permission"
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, OSError):
        return "io"
    return "unreadable" if isinstance(error, ParseError) else "defect"


def describe_error(error: Exception) -> str:
    """Return the message in one printable line: it may quote a file, a driver or another program."""
    if isinstance(error, (ParseError, SourceUnavailable, OSError)):
        return printable(str(error))
    return printable(f"{type(error).__name__}: {error}")
