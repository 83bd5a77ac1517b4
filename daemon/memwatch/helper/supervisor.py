"""Supervise a helper process for calls that may hang or crash. One request line, one response line."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from memwatch.helper.process import Child

log: logging.Logger = logging.getLogger(__name__)

# A response is a few kilobytes per GPU. More than this means the helper is broken; it is killed.
MAX_ANSWER_BYTES = 4 << 20
# Maximum wait for the end of a killed child.
END_SECONDS = 0.2


class HelperError(Exception):
    """There is no response: the helper hung and was killed, it ended, or it may not be restarted yet."""


class Helper:
    """One child: started by the first request, killed if it does not respond, restarted after a pause.

    Not thread-safe. After a failure it is restarted `pause_seconds` after its last start at the earliest, so a
    crashing driver costs little.
    """

    def __init__(
        self,
        argv: Sequence[str],
        deadline_seconds: float,
        pause_seconds: float,
        environ: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._child = Child(argv, environ, takes_input=True)
        self._deadline = deadline_seconds
        self._pause = pause_seconds
        self._monotonic = monotonic
        self._started_at: float | None = None
        self._read = b""
        self._last_failure = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def ask(self, request: bytes) -> bytes:
        """Send a request line, return the response without its newline. Raises HelperError within the deadline."""
        self.send(request)
        return self.answer()

    def send(self, request: bytes) -> None:
        """Send a request line. Raises HelperError if there is no child and none can be started."""
        self._start()
        with suppress(OSError):  # the child has ended: `answer` raises that
            os.write(self._child.input, request + b"\n")

    def has_answer(self, seconds: float) -> bool:
        """Wait up to `seconds` and return True if the response is complete. Call `answer` for it or its failure."""
        until = self._monotonic() + seconds
        while b"\n" not in self._read and len(self._read) <= MAX_ANSWER_BYTES:
            part = self._child.read(until - self._monotonic())
            if not part:
                return False
            self._read += part
        return True

    def answer(self) -> bytes:
        """Return the response to the line sent by `send`. Raises HelperError within the deadline."""
        try:
            return self._receive()
        except HelperError as failure:
            self._last_failure = str(failure)
            self._end()
            raise
        except BaseException:
            self._end()  # a late response would be taken for that to the next request
            raise

    def stop(self, seconds: float = END_SECONDS) -> None:
        """End the child without a failure: the next request starts another one without a pause."""
        self._end(seconds)
        self._started_at = None

    def end_pause(self) -> None:
        """Let the next request start a child at once, as there is a reason to expect that it works now."""
        self._started_at = None

    def _end(self, seconds: float = END_SECONDS) -> None:
        self._read = b""
        self._child.stop(seconds)

    def _start(self) -> None:
        if self._child.pid is not None:
            return
        now = self._monotonic()
        if self._started_at is not None and now - self._started_at < self._pause:
            raise HelperError(f"{self._last_failure}; it is restarted at most every {self._pause:g} s")
        self._started_at = now
        try:
            self._child.start()
        except OSError as error:
            self._last_failure = f"the helper process cannot be started: {error}"
            raise HelperError(self._last_failure) from None
        log.info("helper process %d started", self._child.pid)

    def _receive(self) -> bytes:
        until = self._monotonic() + self._deadline
        while b"\n" not in self._read:
            if len(self._read) > MAX_ANSWER_BYTES:
                raise HelperError("the helper process sent too much data and was killed")
            part = self._child.read(until - self._monotonic())
            if part is None:
                raise HelperError(f"the helper process did not answer for {self._deadline:g} s and was killed")
            if not part:
                raise HelperError(f"the helper process {self._child.how_it_ended()}")
            self._read += part
        answer, _, self._read = self._read.partition(b"\n")
        return answer
