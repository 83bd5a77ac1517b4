"""Log to stderr: with a timestamp on a terminal, with a priority in the journal, which has its own timestamps."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from memwatch.core.printable import printable, printable_lines
from memwatch.core.redaction import redact_text
from memwatchd.log_writer import LogWriter, open_stderr

log = logging.getLogger(__name__)

PLAIN = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s"
TIME = "%Y-%m-%dT%H:%M:%S"

# sd-daemon(3): a line that begins with <N> has syslog priority N.
PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))
# Maximum wait for the last lines at exit. A reader takes them within milliseconds, or has stopped reading.
EXIT_SECONDS = 0.5


class LineFormatter(logging.Formatter):
    """Formatter that writes a message as one line, without secrets. Only a traceback adds lines, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = redact_text(printable(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: ANN401  logging's own name and type
        return "  " + redact_text(printable_lines(super().formatException(ei))).replace("\n", "\n  ")


class JournalFormatter(LineFormatter):
    """Formatter for the journal. Every line gets the priority, also those of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


class QueueHandler(logging.Handler):
    """Handler that formats in the calling thread and leaves the writing to a LogWriter."""

    def __init__(self, writer: LogWriter, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._writer = writer
        writer.describe = self._describe_dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(self._encode(record))
        except Exception:  # noqa: BLE001  as all handlers: logging never fails
            self.handleError(record)

    def _encode(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode("utf-8", "backslashreplace")

    def _describe_dropped(self, count: int) -> bytes:
        words = "log lines dropped, because stderr did not accept them: %d"
        return self._encode(logging.LogRecord(__name__, logging.WARNING, "", 0, words, (count,), None))


def start_logging(level: str, environ: Mapping[str, str]) -> LogWriter:
    """Log to stderr from `level` on, without waiting for its reader. What is printed to stderr goes the same way.

    systemd sets JOURNAL_STREAM if stderr is connected to the journal.
    """
    writer = LogWriter()
    sys.stderr = open_stderr(writer)
    threading.excepthook = log_thread_end
    _use(QueueHandler(writer, _formatter(environ)), level)
    atexit.register(writer.drain, EXIT_SECONDS)
    return writer


def start_direct_logging(level: str, environ: Mapping[str, str]) -> None:
    """Log to stderr from `level` on, in the calling thread. For commands that print a result and exit."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(environ))
    _use(handler, level)


def log_thread_end(end: threading.ExceptHookArgs) -> None:
    """Log an exception that has ended a thread, in one line without traceback."""
    name, kind, error = end.thread.name if end.thread else "unknown", end.exc_type, end.exc_value
    log.error("thread %s has ended: %s: %s", name, kind.__name__, error)
    trace: TracebackType | None = end.exc_traceback
    log.debug("traceback of the ended thread", exc_info=None if error is None else (kind, error, trace))


def _use(handler: logging.Handler, level: str) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _formatter(environ: Mapping[str, str]) -> logging.Formatter:
    formatter: logging.Formatter = LineFormatter(PLAIN, TIME)
    formatter.converter = time.gmtime
    return JournalFormatter("%(message)s") if "JOURNAL_STREAM" in environ else formatter
