"""Sleeping until the next tick is due, or until the kernel says that tasks wait for memory."""

from __future__ import annotations

import logging
import os
import re
import select
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

# Some task stalled for 7 % of the window. Without CAP_SYS_RESOURCE the window has to be a multiple of 2 s (Linux
# commit d82caa27, 2023); before that commit, and with PSI switched off, there is no trigger for anybody else.
LADDER = (b"some 70000 1000000\0", b"some 140000 2000000\0")
STALLED_RATIO = 0.07
WINDOW_OF_ANYBODY_SECONDS = 2
_SOME = re.compile(rb"some .*total=(\d{1,19})\n")


def parse_waiting(data: bytes) -> float | None:
    """Seconds in which some task waited, since boot or since the group was made."""
    found = _SOME.match(data)
    return int(found[1]) / 1e6 if found else None


def is_new(before: float, now: float | None, window_seconds: int) -> bool:
    """Whether a first ring is for what was waited since the trigger was armed; `before` is what was until then.

    In a window of anybody's Linux counts the first wait after arming, however short, together with all that was
    before (psi_trigger_create begins it with the total of privileged triggers; seen with 6.18).
    """
    if now is None or window_seconds != WINDOW_OF_ANYBODY_SECONDS:
        return True
    return now - before >= STALLED_RATIO * window_seconds


class Sleep(Protocol):
    """How the loop waits for its next tick: `wait` returns True where it should look at once; `wake` ends it."""

    def wait(self, seconds: float, stop: threading.Event) -> bool: ...

    def wake(self) -> None: ...


class PsiTrigger:
    """The kernel's own alarm (psi.rst, "Monitoring for pressure thresholds"), armed where that is permitted.

    `window_seconds` is 0 where it is not: then `wait` only sleeps. `wait` is for one thread, `wake` for any.
    """

    def __init__(self, path: Path) -> None:
        self.window_seconds = 0
        self._path = path
        # What had been waited for before it was armed; None once it has rung.
        self._waited_before: float | None = None
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._file = self._armed(path)
        if self._file >= 0:
            self._poll.register(self._file, select.POLLPRI)

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Sleep for so long. True, and early, if tasks wait for memory; early too after `stop` and `wake`."""
        until = time.monotonic() + seconds
        while not stop.is_set():
            happened = dict(self._poll.poll(max(0.0, (until - time.monotonic()) * 1000)))
            if not happened or self._woken in happened:
                break
            if happened[self._file] & (select.POLLERR | select.POLLNVAL):
                self._disarm()
            elif self._rang_truly():
                return True
        return False

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._waker, b"!")

    def close(self) -> None:
        self._disarm()
        os.close(self._woken)
        os.close(self._waker)

    def _armed(self, path: Path) -> int:
        """The descriptor that fires, or -1. Only a file of the kernel's is written to: it says
        that it is empty, and is not."""
        for seconds, request in enumerate(LADDER, 1):
            try:
                file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                log.debug("no PSI trigger at %s: %s", path, error.strerror)
                return -1
            try:
                self._waited_before = parse_waiting(os.pread(file, 256, 0))
                if os.fstat(file).st_size or self._waited_before is None:
                    raise OSError(f"{path} is not the kernel's")
                os.write(file, request)
            except OSError as error:
                log.debug("no PSI trigger of %d s: %s", seconds, error)
                os.close(file)
                continue
            self.window_seconds = seconds
            return file
        return -1

    def _rang_truly(self) -> bool:
        """The first ring is looked into; the kernel's later ones are right."""
        before, self._waited_before = self._waited_before, None
        if before is None:
            return True
        try:
            waited = parse_waiting(self._path.read_bytes())
        except OSError:
            return True
        if is_new(before, waited, self.window_seconds):
            return True
        log.debug("the PSI trigger rang for what was before it was armed, %s s until then", before)
        return False

    def _disarm(self) -> None:
        if self._file >= 0:
            self._poll.unregister(self._file)
            os.close(self._file)
            self._file, self.window_seconds = -1, 0
