"""Sleeping until the next tick is due, or until the kernel says that tasks wait for memory."""

from __future__ import annotations

import logging
import os
import select
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

# Some task stalled for 7 % of the window. Without CAP_SYS_RESOURCE the window has to be a multiple of 2 s (Linux
# commit d82caa27, 2023); before that commit, and with PSI switched off, there is no trigger for anybody else.
LADDER = (b"some 70000 1000000\0", b"some 140000 2000000\0")


class Sleep(Protocol):
    """How the loop waits for its next tick: `wait` returns True where it should look at once; `wake` ends it."""

    def wait(self, seconds: float, stop: threading.Event) -> bool: ...

    def wake(self) -> None: ...


class StallTrigger:
    """The kernel's own alarm (psi.rst, "Monitoring for pressure thresholds"), armed where that is permitted.

    `window_seconds` is 0 where it is not: then `wait` only sleeps. `wait` is for one thread, `wake` for any.
    """

    def __init__(self, path: Path) -> None:
        self.window_seconds = 0
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._file = self._armed(path)
        if self._file >= 0:
            self._poll.register(self._file, select.POLLPRI)

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Sleep for so long. True, and early, if tasks wait for memory; early too after `stop` and `wake`."""
        if stop.is_set():
            return False
        for descriptor, happened in self._poll.poll(max(0.0, seconds * 1000)):
            if descriptor == self._file and happened & (select.POLLERR | select.POLLNVAL):
                self._disarm()
            elif descriptor == self._file:
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
                log.debug("no stall trigger at %s: %s", path, error.strerror)
                return -1
            try:
                if os.fstat(file).st_size or os.pread(file, 5, 0) != b"some ":
                    raise OSError(f"{path} is not the kernel's")
                os.write(file, request)
            except OSError as error:
                log.debug("no stall trigger of %d s: %s", seconds, error)
                os.close(file)
                continue
            self.window_seconds = seconds
            return file
        return -1

    def _disarm(self) -> None:
        if self._file >= 0:
            self._poll.unregister(self._file)
            os.close(self._file)
            self._file, self.window_seconds = -1, 0
