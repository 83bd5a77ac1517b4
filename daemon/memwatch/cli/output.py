"""Output of commands: styled lines on stdout, and files that another program reads."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from memwatch.cli.http import CommandError
from memwatch.cli.terminal.style import Depth, Line, find_depth, paint, plain
from memwatch.core.printable import describe_error, printable
from memwatch.core.runtime.own_files import remedy_to_write

# A pipe has no width. Tables of tools fit a usual terminal.
PIPE_WIDTH = 100


def stdout_depth() -> Depth:
    return find_depth(sys.stdout.isatty(), os.environ)


def stdout_width() -> int:
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if sys.stdout.isatty() else PIPE_WIDTH


def paint_lines(lines: Iterable[Line]) -> list[str]:
    """Return the lines for stdout. Control characters of names are escaped."""
    depth = stdout_depth()
    attributes = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    found = []
    for line in lines:
        safe = tuple(span._replace(text=printable(span.text)) for span in line)
        found.append(paint(safe, depth, attributes).rstrip() if depth or attributes else plain(safe).rstrip())
    return found


MODE = 0o644


def write_atomically(path: Path, text: str) -> None:
    """Replace a file at once; a reader sees the old or the new text. Readers skip the hidden file beside it."""
    fresh = ""
    try:
        descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(descriptor, MODE)
        os.replace(fresh, path)
    except OSError as error:
        if fresh and os.path.exists(fresh):
            os.unlink(fresh)
        why = describe_error(error)
        raise CommandError(f"cannot write {path}: {why}; {remedy_to_write(error)}") from None
