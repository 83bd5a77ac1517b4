"""Events of memory that the kernel reports: OOM and pressure of the own control group, and PSI triggers."""

from __future__ import annotations

import base64
import binascii
import ctypes
import logging
import os
import re
import select
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from memwatch.core.linux.cgroup_mounts import V2, find_own_cgroup
from memwatch.core.linux.files import KeptFile, Roots, SourceUnavailable
from memwatch.core.linux.wakeups import Wake

log: logging.Logger = logging.getLogger(__name__)

# `low`, `high` and `max` also count reclaim of page cache, which is usual in a container that reads files.
_OOM = re.compile(rb"^oom\w{0,20} \d{1,20}$", re.MULTILINE)
_IN_MODIFY = 0x2
_EVENTS_BYTES = 4096


class MemoryEvents:
    """Watch of `memory.events` of the own cgroup or ancestor with the smallest limit, if it has one at the start.

    The kernel reports changes of the file to inotify (cgroup-v2.rst, "file modified event"), at most every 10 ms.
    Version 1 has no such file.
    """

    event_mask: int = select.POLLIN

    def __init__(self, roots: Roots) -> None:
        self.event_file: int = -1
        self._counts: list[bytes] = []
        self._events: KeptFile | None = None
        try:
            folder = find_limited_group(roots)
            if folder is not None:
                self._watch(folder / V2.events)
        except (OSError, SourceUnavailable) as error:
            log.debug("no events of a memory limit: %s", error)
            self.close()

    def read_event(self, happened: int) -> Wake:
        before = self._counts
        try:
            os.read(self.event_file, _EVENTS_BYTES)
            self._counts = self._read_counts()
        except BlockingIOError:
            return Wake.DUE
        except OSError as error:  # the group was removed
            log.debug("no more events of a memory limit (%d): %s", happened, error)
            self.close()
            return Wake.DUE
        return Wake.DUE if self._counts == before else Wake.NEWS

    def close(self) -> None:
        if self.event_file >= 0:
            os.close(self.event_file)
            self.event_file = -1
        if self._events is not None:
            self._events.close()
            self._events = None

    def _watch(self, path: Path) -> None:
        self._events = KeptFile(path, 512)
        self.event_file = watch_changes(path)
        self._counts = self._read_counts()

    def _read_counts(self) -> list[bytes]:
        return [] if self._events is None else _OOM.findall(self._events.read())


def find_limited_group(roots: Roots) -> Path | None:
    """Return the folder of the own cgroup or ancestor with the smallest limit, None without one."""
    folder = roots.procfs / "self"
    home = find_own_cgroup((folder / "cgroup").read_bytes(), (folder / "mountinfo").read_bytes(), roots)
    limits: dict[Path, int] = {}
    for group in home.folders if home.version is V2 else ():
        with suppress(OSError, ValueError):  # no memory controller, or the limit `max`
            limits[group] = int((group / V2.limit).read_bytes())
    return min(limits, key=limits.__getitem__, default=None)


def watch_changes(path: Path) -> int:
    """Return a descriptor of inotify(7) that becomes readable when the file changes. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if file >= 0 and libc.inotify_add_watch(file, os.fsencode(path), _IN_MODIFY) >= 0:
        return file
    error = ctypes.get_errno()
    if file >= 0:
        os.close(file)
    raise OSError(error, os.strerror(error), str(path))


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


# PSI trigger: the kernel reports that tasks stall on memory.

# By the window in seconds: some task stalled for 7 % of it. Without CAP_SYS_RESOURCE it is a multiple of 2 s (Linux
# commit d82caa27, 2023). Before that commit there is no unprivileged trigger, and with PSI disabled none at all.
# The process that opens the file needs the right, not the one that writes to it (psi_trigger_create, psi_open):
# systemd may open it for a service without rights, by OpenFile= under this name.
PASSED_PRESSURE = "memory-pressure"
LADDER = {0.5: b"some 35000 500000\0", 2.0: b"some 140000 2000000\0"}
STALLED_RATIO = 0.07
WINDOW_OF_ANYBODY_SECONDS = 2.0
_SOME = re.compile(rb"some .*total=(\d{1,19})\n")


def parse_waiting(data: bytes) -> float | None:
    """Return the seconds that some task was stalled, since boot or since the cgroup was created."""
    found = _SOME.match(data)
    return int(found[1]) / 1e6 if found else None


def is_new(before: float, now: float | None, window_seconds: float) -> bool:
    """Return True if the first event covers stalls since the trigger was armed. `before`: total stall until then.

    For an unprivileged trigger Linux reports the first stall after arming, however short, together with all stalls
    before it (psi_trigger_create starts it with the total of privileged triggers; seen with 6.18).
    """
    if now is None or window_seconds != WINDOW_OF_ANYBODY_SECONDS:
        return True
    return now - before >= STALLED_RATIO * window_seconds


class PsiTrigger:
    """A PSI trigger (psi.rst, "Monitoring for pressure thresholds"), armed if that is permitted.

    `window_seconds` is 0 and `event_file` -1 if it is not. `passed` is an open descriptor of the file, or -1.
    """

    event_mask: int = select.POLLPRI

    def __init__(self, path: Path, passed: int = -1) -> None:
        self.window_seconds: float = 0.0
        self._path = path
        # Total stall in seconds when it was armed; None after the first event.
        self._waited_before: float | None = None
        self.event_file: int = self._arm(path, passed)

    def is_prompt(self) -> bool:
        """Return True if the kernel adds stalls up ten times a window, not every 2 s (psi.c)."""
        return 0 < self.window_seconds < WINDOW_OF_ANYBODY_SECONDS

    def read_event(self, happened: int) -> Wake:
        if happened & (select.POLLERR | select.POLLNVAL):
            self.close()
            return Wake.DUE
        return Wake.STALL if self._rang_truly() else Wake.DUE

    def close(self) -> None:
        if self.event_file >= 0:
            os.close(self.event_file)
            self.event_file, self.window_seconds = -1, 0.0

    def _arm(self, path: Path, passed: int) -> int:
        """Arm the trigger, and return its descriptor or -1.

        Only a kernel file is written to: its size is 0 although it has content.
        """
        tries = [(passed, min(LADDER))] * (passed >= 0) + [(-1, seconds) for seconds in LADDER]
        for given, seconds in tries:
            try:
                file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) if given < 0 else given
            except OSError as error:
                log.debug("no PSI trigger at %s: %s", path, error.strerror)
                return -1
            try:
                if given >= 0 and not os.path.samestat(os.fstat(given), os.stat(path)):
                    raise OSError(f"descriptor {given} is of another file")
                self._waited_before = parse_waiting(os.pread(file, 256, 0))
                if os.fstat(file).st_size or self._waited_before is None:
                    raise OSError(f"{path} is not a kernel file")
                os.write(file, LADDER[seconds])
            except OSError as error:
                log.debug("no PSI trigger with a window of %g s: %s", seconds, error)
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
