"""Print styled lines to stdout: with colours on a terminal, as plain text elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable

from memwatch.cli.terminal.style import Depth, Line, find_depth, paint, plain
from memwatch.core.printable import printable

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
