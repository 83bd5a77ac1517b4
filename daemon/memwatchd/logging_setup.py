"""Log to stderr: with a timestamp on a terminal, with a priority in the journal, which has its own timestamps."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from memwatch.printable import printable, printable_lines

PLAIN = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s"
TIME = "%Y-%m-%dT%H:%M:%S"

# sd-daemon(3): a line that begins with <N> has syslog priority N.
PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))


class LineFormatter(logging.Formatter):
    """Formatter that writes a message as one line, whatever it quotes. Only a traceback adds lines, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: ANN401  logging's own name and type
        return "  " + printable_lines(super().formatException(ei)).replace("\n", "\n  ")


class JournalFormatter(LineFormatter):
    """Formatter for the journal. Every line gets the priority, also those of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


def start_logging(level: str, environ: Mapping[str, str]) -> None:
    """Log to stderr from `level` on. systemd sets JOURNAL_STREAM if stderr is connected to the journal."""
    formatter: logging.Formatter = LineFormatter(PLAIN, TIME)
    formatter.converter = time.gmtime
    if "JOURNAL_STREAM" in environ:
        formatter = JournalFormatter("%(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
