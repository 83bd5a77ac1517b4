"""Pressure of the own control group, by the variables that systemd 254 sets (systemd.io/PRESSURE)."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import select
import stat
from collections.abc import Callable, Mapping

from memwatch.core.linux.wakeups import Wake

log: logging.Logger = logging.getLogger(__name__)

WATCH, WRITE = "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"
OFF = "/dev/null"
MAX_WRITE_BYTES = 256


class OwnPressure:
    """Watch of the kernel's file for the own control group. Each event calls `release`, at most once a window.

    `event_file` is -1 without the variables, and for a socket or a FIFO: memwatchd does not watch itself.
    """

    event_mask: int = select.POLLPRI

    def __init__(self, environ: Mapping[str, str], release: Callable[[], object]) -> None:
        self._release = release
        path = environ.get(WATCH, OFF)
        self.event_file: int = -1 if path == OFF else _arm(path, environ.get(WRITE, ""))

    def read_event(self, happened: int) -> Wake:
        if happened & (select.POLLERR | select.POLLNVAL):  # the group was removed
            self.close()
        else:
            log.debug("releasing memory: the own control group is under pressure")
            self._release()
        return Wake.DUE

    def close(self) -> None:
        if self.event_file >= 0:
            os.close(self.event_file)
            self.event_file = -1


def _arm(path: str, encoded: str) -> int:
    """Write the threshold to a PSI file, and return its descriptor or -1. Only a kernel file is written to."""
    file = -1
    try:
        threshold = base64.b64decode(encoded, validate=True)
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size or not os.pread(file, MAX_WRITE_BYTES, 0):
            raise OSError("it is not a file of the kernel")
        if threshold:
            os.write(file, threshold[:MAX_WRITE_BYTES])
    except (OSError, binascii.Error) as error:
        log.debug("the own memory pressure is not watched at %s: %s", path, error)
        if file >= 0:
            os.close(file)
        return -1
    return file
