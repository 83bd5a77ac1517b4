"""A helper process that does what may hang or crash, so that only it can: asked a line, it answers a line."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger(__name__)

# An answer is some kilobytes for each GPU; a helper that sends more than this has lost its mind.
MOST_ANSWER_BYTES = 4 << 20


class HelperFailed(Exception):
    """No answer, in a sentence: it hung and was killed, it died, or it may not be started again yet."""


class Helper:
    """Keeps one child: started on first demand, killed when it does not answer, replaced after a pause.

    For one thread. Between two starts lie at least `pause_seconds`, so a crashing driver costs little. A child
    that cannot be killed (a call stuck in the kernel) is left behind and reaped when the kernel lets go of it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        deadline_seconds: float,
        pause_seconds: float,
        environ: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._argv = list(argv)
        self._deadline = deadline_seconds
        self._pause = pause_seconds
        self._environ = environ
        self._monotonic = monotonic
        self._child: subprocess.Popen[bytes] | None = None
        self._left_behind: list[subprocess.Popen[bytes]] = []
        self._started_at: float | None = None
        self._read = b""
        self._to = self._from = -1
        self._last_failure = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def ask(self, request: bytes) -> bytes:
        """The answer to one line, without its newline. Raises HelperFailed within the deadline."""
        child = self._running()
        try:
            self._send(child, request)
            return self._receive(child)
        except HelperFailed as failure:
            self._last_failure = str(failure)
            self.stop()
            raise

    def stop(self) -> None:
        """End the child at once; its descriptors, and so the driver's, are closed by the kernel."""
        child, self._child, self._read = self._child, None, b""
        if child is None:
            return
        child.kill()
        os.close(self._to)
        os.close(self._from)
        self._left_behind.append(child)
        self._reap(0.2)

    def _running(self) -> subprocess.Popen[bytes]:
        self._reap(0.0)
        if self._child is not None:
            return self._child
        now = self._monotonic()
        if self._started_at is not None and now - self._started_at < self._pause:
            said = self._last_failure or "the helper process was stopped"
            raise HelperFailed(f"{said}; between two starts lie {self._pause:g} s")
        self._started_at = now
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        try:
            self._child = subprocess.Popen(self._argv, stdin=theirs_in, stdout=theirs_out, env=self._environ)  # noqa: S603
        except OSError as error:
            os.close(self._to)
            os.close(self._from)
            raise HelperFailed(f"the helper process cannot be started: {error}") from None
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        log.info("helper process %d started", self._child.pid)
        return self._child

    def _send(self, child: subprocess.Popen[bytes], request: bytes) -> None:
        try:
            os.write(self._to, request + b"\n")
        except OSError:
            raise HelperFailed(self._last_words(child)) from None

    def _receive(self, child: subprocess.Popen[bytes]) -> bytes:
        until = self._monotonic() + self._deadline
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - self._monotonic()))
            if not ready:
                raise HelperFailed(f"the helper process did not answer for {self._deadline:g} s and was killed")
            part = os.read(self._from, 1 << 16)
            if not part:
                raise HelperFailed(self._last_words(child))
            self._read += part
            if len(self._read) > MOST_ANSWER_BYTES:
                raise HelperFailed("the helper process sent more than it should and was killed")
        answer, _, self._read = self._read.partition(b"\n")
        return answer

    @staticmethod
    def _last_words(child: subprocess.Popen[bytes]) -> str:
        try:
            code = child.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the helper process closed its pipe and was killed"
        cause = f"by signal {-code}" if code < 0 else f"with code {code}"
        return f"the helper process ended {cause}"

    def _reap(self, seconds: float) -> None:
        until = self._monotonic() + seconds
        while True:
            self._left_behind = [child for child in self._left_behind if child.poll() is None]
            if not self._left_behind or self._monotonic() >= until:
                return
            time.sleep(0.005)
