"""Programs that print lines for as long as they run, restarted after a backoff."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NoReturn

from memwatch.core.helper.process import Child, bind_to_parent
from memwatch.core.linux.files import ParseError
from memwatch.core.runtime.worker import Backoff


class LineBuffer:
    """Buffers the beginning of a line until it is complete. Lines longer than `max_bytes` are dropped.

    `cut` counts the dropped lines.
    """

    def __init__(self, max_bytes: int) -> None:
        self.cut: int = 0
        self._max_bytes = max_bytes
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are now complete, each with its newline."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [line + b"\n" for line in whole]
        if self._skipping and lines:
            lines.pop(0)
            self._skipping = False
        kept = [line for line in lines if len(line) <= self._max_bytes]
        self.cut += len(lines) - len(kept)
        if len(self._rest) >= self._max_bytes:
            self.cut += not self._skipping
            self._rest, self._skipping = b"", True
        return kept


log: logging.Logger = logging.getLogger(__name__)


class LineProgram:
    """Child process, its lines, and the pause before its next start. Not thread-safe.

    Lines longer than `max_line_bytes` are dropped. The stderr of a `quiet` program is discarded.
    """

    def __init__(
        self, name: str, command: Sequence[str], max_line_bytes: int, backoff: Backoff, quiet: bool = False
    ) -> None:
        self._name = name
        self._child = Child(bind_to_parent(command), quiet=quiet)
        self._max_line_bytes = max_line_bytes
        self._lines = LineBuffer(max_line_bytes)
        self._backoff = backoff
        self._trouble = ""

    def ensure_running(self) -> None:
        """Start the program if it does not run. Raises ParseError with the last error during a pause."""
        if self._child.pid is not None:
            return
        if not self._backoff.is_due(time.monotonic()):
            raise ParseError(self._trouble)
        self._backoff.failed(time.monotonic())
        self._lines = LineBuffer(self._max_line_bytes)
        self._child.start()
        log.info("%s started as process %d", self._name, self._child.pid)

    def read(self, seconds: float, keep_end: bool = False) -> list[bytes] | None:
        """Return the next complete lines, None after `seconds` without output.

        Raises ParseError if the program has ended. `keep_end` leaves that to the next call, and returns None.
        """
        data = self._child.read(seconds)
        if data is None or (keep_end and not data):
            return None
        if not data:
            self.give_up(self._child.how_it_ended())
        return self._lines.feed(data)

    def take_cut(self) -> int:
        """Return the number of lines dropped since the last call."""
        cut, self._lines.cut = self._lines.cut, 0
        return cut

    def reset_pause(self) -> None:
        """Make the next pause the first one again: the program works."""
        self._backoff.reset()

    def give_up(self, why: str) -> NoReturn:
        """Stop the program. The message stays the same until another error occurs, so it is logged only once."""
        self._child.stop()
        self._trouble = f"{self._name} {why}; it will be restarted after a pause"
        raise ParseError(self._trouble)

    def stop(self) -> None:
        self._child.stop()
