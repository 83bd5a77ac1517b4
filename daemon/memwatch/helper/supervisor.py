"""A helper process that does what may hang or crash, so that only it can: asked a line, it answers a line."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from memwatch.helper.process import Child

log = logging.getLogger(__name__)

# An answer is some kilobytes for each GPU; a helper that sends more than this has lost its mind.
MOST_ANSWER_BYTES = 4 << 20
# How long the end of a child is waited for.
END_SECONDS = 0.2


class HelperFailed(Exception):
    """No answer, in a sentence: it hung and was killed, it died, or it may not be started again yet."""


class Helper:
    """Keeps one child: started on first demand, killed when it does not answer, replaced after a pause.

    For one thread at a time. Between the start of one that failed and the next lie at least `pause_seconds`, so a
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
        """The answer to one line, without its newline. Raises HelperFailed within the deadline."""
        self.put(request)
        return self.answer()

    def put(self, request: bytes) -> None:
        """Put one line to it. Raises HelperFailed where there is no child and none can be started."""
        self._start()
        with suppress(OSError):  # it has ended: that is told where its answer should be
            os.write(self._child.input, request + b"\n")

    def has_answer(self, seconds: float) -> bool:
        """Whether all of the answer is there within so many seconds. What else came is for `answer` to tell."""
        until = self._monotonic() + seconds
        while b"\n" not in self._read and len(self._read) <= MOST_ANSWER_BYTES:
            part = self._child.read(until - self._monotonic())
            if not part:
                return False
            self._read += part
        return True

    def answer(self) -> bytes:
        """What it says to the line that was put. Raises HelperFailed within the deadline."""
        try:
            return self._receive()
        except HelperFailed as failure:
            self._last_failure = str(failure)
            self._end()
            raise
        except BaseException:
            self._end()  # an answer that came later would be to another question
            raise

    def stop(self, seconds: float = END_SECONDS) -> None:
        """End the child, which has done nothing wrong: the next question starts another one at once."""
        self._end(seconds)
        self._started_at = None

    def _end(self, seconds: float = END_SECONDS) -> None:
        self._read = b""
        self._child.stop(seconds)

    def _start(self) -> None:
        if self._child.pid is not None:
            return
        now = self._monotonic()
        if self._started_at is not None and now - self._started_at < self._pause:
            raise HelperFailed(f"{self._last_failure}; between two starts lie {self._pause:g} s")
        self._started_at = now
        try:
            self._child.start()
        except OSError as error:
            self._last_failure = f"the helper process cannot be started: {error}"
            raise HelperFailed(self._last_failure) from None
        log.info("helper process %d started", self._child.pid)

    def _receive(self) -> bytes:
        until = self._monotonic() + self._deadline
        while b"\n" not in self._read:
            if len(self._read) > MOST_ANSWER_BYTES:
                raise HelperFailed("the helper process sent more than it should and was killed")
            part = self._child.read(until - self._monotonic())
            if part is None:
                raise HelperFailed(f"the helper process did not answer for {self._deadline:g} s and was killed")
            if not part:
                raise HelperFailed(f"the helper process {self._child.last_words()}")
            self._read += part
        answer, _, self._read = self._read.partition(b"\n")
        return answer
