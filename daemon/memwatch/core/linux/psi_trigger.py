"""A PSI trigger: the kernel reports that tasks stall on memory."""

from __future__ import annotations

import logging
import os
import re
import select
from pathlib import Path

from memwatch.core.linux.wakeups import Wake

log: logging.Logger = logging.getLogger(__name__)

# Some task stalled for 7 % of the window. Without CAP_SYS_RESOURCE the window must be a multiple of 2 s (Linux
# commit d82caa27, 2023). Before that commit there is no unprivileged trigger, and with PSI disabled none at all.
LADDER = (b"some 70000 1000000\0", b"some 140000 2000000\0")
STALLED_RATIO = 0.07
WINDOW_OF_ANYBODY_SECONDS = 2
_SOME = re.compile(rb"some .*total=(\d{1,19})\n")


def parse_waiting(data: bytes) -> float | None:
    """Return the seconds that some task was stalled, since boot or since the cgroup was created."""
    found = _SOME.match(data)
    return int(found[1]) / 1e6 if found else None


def is_new(before: float, now: float | None, window_seconds: int) -> bool:
    """Return True if the first event covers stalls since the trigger was armed. `before`: total stall until then.

    For an unprivileged trigger Linux reports the first stall after arming, however short, together with all stalls
    before it (psi_trigger_create starts it with the total of privileged triggers; seen with 6.18).
    """
    if now is None or window_seconds != WINDOW_OF_ANYBODY_SECONDS:
        return True
    return now - before >= STALLED_RATIO * window_seconds


class PsiTrigger:
    """A PSI trigger (psi.rst, "Monitoring for pressure thresholds"), armed if that is permitted.

    `window_seconds` is 0 and `event_file` -1 if it is not.
    """

    event_mask: int = select.POLLPRI

    def __init__(self, path: Path) -> None:
        self.window_seconds: int = 0
        self._path = path
        # Total stall in seconds when it was armed; None after the first event.
        self._waited_before: float | None = None
        self.event_file: int = self._arm(path)

    def read_event(self, happened: int) -> Wake:
        if happened & (select.POLLERR | select.POLLNVAL):
            self.close()
            return Wake.DUE
        return Wake.STALL if self._rang_truly() else Wake.DUE

    def close(self) -> None:
        if self.event_file >= 0:
            os.close(self.event_file)
            self.event_file, self.window_seconds = -1, 0

    def _arm(self, path: Path) -> int:
        """Arm the trigger, and return its descriptor or -1.

        Only a kernel file is written to: its size is 0 although it has content.
        """
        for seconds, request in enumerate(LADDER, 1):
            try:
                file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                log.debug("no PSI trigger at %s: %s", path, error.strerror)
                return -1
            try:
                self._waited_before = parse_waiting(os.pread(file, 256, 0))
                if os.fstat(file).st_size or self._waited_before is None:
                    raise OSError(f"{path} is not a kernel file")
                os.write(file, request)
            except OSError as error:
                log.debug("no PSI trigger with a window of %d s: %s", seconds, error)
                os.close(file)
                continue
            self.window_seconds = seconds
            return file
        return -1

    def _rang_truly(self) -> bool:
        """Return False if the event only covers stalls before arming. Only the first event can be wrong."""
        before, self._waited_before = self._waited_before, None
        if before is None:
            return True
        try:
            waited = parse_waiting(self._path.read_bytes())
        except OSError:
            return True
        if is_new(before, waited, self.window_seconds):
            return True
        log.debug("ignored a PSI event about %s s of stalls before the trigger was armed", before)
        return False
