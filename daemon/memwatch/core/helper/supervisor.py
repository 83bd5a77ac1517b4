"""Supervise a helper process for calls that may hang or crash. One request line, one response line."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from memwatch.core.helper.process import Child
from memwatch.core.runtime.worker import Backoff

log: logging.Logger = logging.getLogger(__name__)

# A response is a few kilobytes per GPU. More than this means the helper is broken; it is killed.
MAX_ANSWER_BYTES = 4 << 20
# Maximum wait for the end of a killed child.
END_SECONDS = 0.2
# The pause after the first restart. It doubles with each further one.
FIRST_PAUSE_SECONDS = 1.0
# Killed children that a driver keeps in the kernel. Each holds memory and the driver's files.
MAX_LEFT_BEHIND = 3


class HelperError(Exception):
    """There is no response: the helper hung and was killed, it ended, or it may not be restarted yet."""


class HelperEndedError(HelperError):
    """The helper has ended by itself, or another process or the kernel killed it."""


class Helper:
    """One child: started by the first request, killed if it does not respond, restarted with backoff.

    Not thread-safe. After the first failure it is restarted at once, and after further ones with a pause that
    doubles up to `pause_seconds` between two starts, so that a crashing driver costs little. A child that has run
    for `pause_seconds` ends the backoff.
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
        self._backoff = Backoff(min(FIRST_PAUSE_SECONDS, pause_seconds), pause_seconds)
        self._monotonic = monotonic
        self._started_at = 0.0
        self._request = self._read = b""
        self._has_answered = False
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
        self._request = request
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
        """Return the response to the line sent by `send`. Raises HelperError within the deadline.

        A child that has ended after earlier responses, such as a victim of the OOM killer, is replaced at once if
        no pause applies. The new one gets the request.
        """
        had_answered = self._has_answered
        try:
            return self._receive_or_end()
        except HelperEndedError as failure:
            if not had_answered or not self._backoff.is_due(self._monotonic()):
                raise
            log.warning("%s, restarting it", failure)
        self.send(self._request)
        return self._receive_or_end()

    def stop(self, seconds: float = END_SECONDS) -> None:
        """End the child without a failure: the next request starts another one without a pause."""
        self._end(seconds)
        self._last_failure = ""
        self._backoff.end()

    def end_pause(self) -> None:
        """Let the next request start a child at once, as there is a reason to expect that it works now."""
        self._backoff.end()

    def _end(self, seconds: float = END_SECONDS) -> None:
        self._read = b""
        self._child.stop(seconds)

    def _start(self) -> None:
        if self._child.pid is not None:
            return
        now = self._monotonic()
        self._refuse_restart(now)
        if self._last_failure:
            self._backoff.failed(now)
        self._started_at, self._has_answered = now, False
        try:
            self._child.start()
        except OSError as error:
            self._last_failure = f"the helper process cannot be started: {error}"
            raise HelperError(self._last_failure) from None
        log.info("helper process %d started", self._child.pid)

    def _refuse_restart(self, now: float) -> None:
        """Raise HelperError if no child may be started now. The text stays the same, so it is logged once."""
        if not self._backoff.is_due(now):
            raise HelperError(f"{self._last_failure}; it is restarted with pauses of up to {self._pause:g} s")
        if (stuck := self._child.count_left_behind()) >= MAX_LEFT_BEHIND:
            why = f"{stuck} killed helper processes do not end, as the driver holds them in the kernel"
            raise HelperError(f"{self._last_failure or 'no helper process'}; {why}: restart the machine")

    def _receive_or_end(self) -> bytes:
        """Receive the response, or end the child and raise: a late response could be taken for a later one."""
        try:
            answer = self._receive()
        except HelperError as failure:
            self._last_failure = str(failure)
            if self._monotonic() - self._started_at >= self._pause:
                self._backoff.end()
            self._end()
            raise
        except BaseException:
            self._end()
            raise
        self._has_answered = True
        return answer

    def _receive(self) -> bytes:
        until = self._monotonic() + self._deadline
        while b"\n" not in self._read:
            if len(self._read) > MAX_ANSWER_BYTES:
                raise HelperError("the helper process sent too much data and was killed")
            part = self._child.read(until - self._monotonic())
            if part is None:
                raise HelperError(f"the helper process did not answer for {self._deadline:g} s and was killed")
            if not part:
                raise HelperEndedError(f"the helper process {self._child.how_it_ended()}")
            self._read += part
        answer, _, self._read = self._read.partition(b"\n")
        return answer
