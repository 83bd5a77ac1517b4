"""Log to stderr: with a timestamp on a terminal, with a priority in the journal, which has its own timestamps."""

from __future__ import annotations

import atexit
import io
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from memwatch.core.printable import printable, printable_lines
from memwatch.core.redaction import redact_text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


# Write log lines to stderr in a separate thread, so that a reader that stops reading stops nothing else.
#
# A write to a full pipe, to a terminal stopped with Ctrl-S or to a blocked log driver does not return. Only the
# thread of this module writes, and with write(2): a stream has a lock, for which the interpreter would wait at
# exit.

STDERR = 2
# Limits of the unread lines. Each failure is logged once, so that a daemon in trouble logs some ten lines a minute:
# that is an hour or more. Long lines, such as tracebacks at debug level, are limited by their size.
MAX_LINES, MAX_BYTES = 1000, 256 * 1024
# A pipe that is ready takes as much without waiting (PIPE_BUF).
PIECE_BYTES = 4096


def describe_dropped(count: int) -> bytes:
    return b"memwatchd: log lines dropped: %d\n" % count


class LogWriter:
    """Bounded queue of log lines and the thread that writes them. `put` never waits for the reader.

    A full queue drops the newest lines. Those that are kept continue the lines that were read before, show how the
    trouble began, and leave a single gap. A line from `describe` takes the place of the gap.
    """

    def __init__(self, descriptor: int = STDERR, describe: Callable[[int], bytes] = describe_dropped) -> None:
        self.dropped = 0
        self.describe = describe
        self._descriptor = descriptor
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # Also in a forked child, which has no other thread; the lock may have been held by one.
        self._waiting: deque[bytes | int] = deque()  # a number: that many lines are missing here
        self._lines = self._bytes = self._gap = 0
        self._changed = threading.Condition()  # reentrant: a destructor may log while this thread holds it
        self._thread: threading.Thread | None = None
        self._is_starting = self._is_writing = False

    def put(self, text: bytes) -> None:
        """Queue complete lines, or count them as dropped."""
        with self._changed:
            self._start()
            if not self._fits(text):
                self.dropped += _count_lines(text)
                self._gap += _count_lines(text)
                return
            self._append_gap()
            self._append(text)
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait up to `seconds` until everything is written. Return False if it is not."""
        with self._changed:
            self._start()
            if self._thread is not None:
                return self._changed.wait_for(self._is_idle, seconds)
        return self._write_what_fits()

    def _write_what_fits(self) -> bool:
        """Write at the exit without a thread, as none can be started, as long as stderr takes a piece at once."""
        lines = b"".join(entry for entry in self._waiting if isinstance(entry, bytes))
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        with suppress(OSError):
            while lines and poll.poll(0):
                lines = lines[os.write(self._descriptor, lines[:PIECE_BYTES]) :]
        return not lines

    def _is_idle(self) -> bool:
        return not self._has_work() and not self._is_writing

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._gap > 0

    def _fits(self, text: bytes) -> bool:
        return self._lines + _count_lines(text) <= MAX_LINES and self._bytes + len(text) <= MAX_BYTES

    def _append(self, text: bytes) -> None:
        self._waiting.append(text)
        self._lines += _count_lines(text)
        self._bytes += len(text)

    def _append_gap(self) -> None:
        if self._gap:
            self._waiting.append(self._gap)
            self._gap = 0

    def _start(self) -> None:
        """Start the thread, once, with the lock held. If that fails (pids.max, no memory) the next line retries."""
        if self._thread is not None or self._is_starting:
            return
        self._is_starting = True
        thread = threading.Thread(target=self._write_until_exit, name="log", daemon=True)
        with suppress(RuntimeError, MemoryError):
            thread.start()
            self._thread = thread
        self._is_starting = False

    def _write_until_exit(self) -> None:
        lost = 0
        while True:
            entry = self._next()
            text, lost = (b"", lost + entry) if isinstance(entry, int) else (entry, lost)
            try:
                write_all(self._descriptor, (self.describe(lost) if lost else b"") + text)
                lost = 0
            except (OSError, MemoryError):  # no reader, a full disk, a terminal that is gone
                lost += _count_lines(text)
                self.dropped += _count_lines(text)

    def _next(self) -> bytes | int:
        """Return the next lines, or the number of lines that are missing in their place."""
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(self._has_work)
            self._is_writing = True
            if not self._waiting:
                self._append_gap()
            entry = self._waiting.popleft()
            if isinstance(entry, bytes):
                self._lines -= _count_lines(entry)
                self._bytes -= len(entry)
            return entry


class LogStream(io.RawIOBase):
    """Raw stream of a LogWriter. With it as sys.stderr, `print`, warnings and tracebacks do not wait either."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDERR

    def write(self, data: Buffer) -> int:
        text = bytes(data)
        self._writer.put(text)
        return len(text)


def open_stderr(writer: LogWriter) -> io.TextIOWrapper:
    """Return a replacement of sys.stderr that passes each line to `writer`."""
    stream: Any = LogStream(writer)
    return io.TextIOWrapper(stream, "utf-8", "backslashreplace", line_buffering=True)


def write_all(descriptor: int, text: bytes) -> None:
    """Write all of `text`. Another program may have made a shared terminal or pipe non-blocking: then wait."""
    while text:
        with suppress(BlockingIOError):
            text = text[os.write(descriptor, text) :]
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        poll.poll()


def _count_lines(text: bytes) -> int:
    return max(1, text.count(b"\n"))


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
