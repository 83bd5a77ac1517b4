"""The kernel log: OOM kills and errors of GPU drivers."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.files import NOT_PERMITTED, ParseError, Roots, SourceUnavailable, read_once
from memwatch.core.linux.kmsg_parser import KernelLogTracker, may_matter, parse_record
from memwatch.core.linux.line_program import LineBuffer
from memwatch.core.linux.process_files import CAP_SYSLOG, has_capability
from memwatch.core.linux.wakeups import Wake

# The kernel makes records of up to 8 KiB and refuses a smaller buffer (EINVAL).
MAX_BYTES = 8192
# A kill prints a line for each task of the machine before it names the victim; 4,000 lines take 15 ms.
MAX_LINES = 4000
KERNEL = 0
LOG_DEVICE = os.makedev(1, 11)
DMESG_RESTRICT = Path("/proc/sys/kernel/dmesg_restrict")


class Collector(BaseCollector):
    """Reads messages logged after its start. Messages from programs are ignored: only the kernel's are trusted."""

    name = "kmsg"
    period_seconds: float = 1.0
    about = (
        "The kernel log: OOM kills and errors of GPU drivers. "
        "Needs root or CAP_SYSLOG where kernel.dmesg_restrict is 1."
    )
    event_mask: int = select.POLLIN

    def __init__(self, roots: Roots, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = roots.rootfs / "dev/kmsg"
        self._wall_clock = wall_clock
        self._file = open_log(self._path)
        # A regular file, such as a copy of the log, is always readable for poll(2).
        self._is_watched = not stat.S_ISREG(os.fstat(self._file).st_mode)
        self._lines = LineBuffer(MAX_BYTES)
        self._tracker = KernelLogTracker(Accounts(roots.rootfs).of_cgroup)
        self._next: int | None = None

    @property
    def event_file(self) -> int:
        return self._file if self._is_watched else -1

    def collect(self) -> Findings:
        self._read_new()
        self._tracker.end_wait(self._wall_clock())
        return Findings(kernel_log=self._tracker.log, left_out={"driver_errors": self._tracker.left_out})

    def read_event(self, happened: int) -> Wake:
        """Read new lines. Only those about a kill or an error of a driver need a tick."""
        before = self._tracker.log
        self._is_watched = bool(happened & select.POLLIN)  # a pipe that no process writes to reports POLLHUP only
        try:
            self._read_new()
        except ParseError:  # the next run reports it
            self._is_watched = False
        now = self._tracker.log
        return Wake.NEWS if (now.kills, now.driver_errors) != (before.kills, before.driver_errors) else Wake.DUE

    def _read_new(self) -> None:
        read = 0
        while read < MAX_LINES and (data := self._chunk()):
            lines = self._lines.feed(data)
            for line in lines:
                self._read(line)
            read += len(lines)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _chunk(self) -> bytes:
        """Read what is available: one record of the device, any part of a file or pipe; empty at the end."""
        try:
            return os.read(self._file, MAX_BYTES)
        except BlockingIOError:
            return b""
        except BrokenPipeError:  # records were overwritten: the next read continues with the oldest one left
            return self._chunk_after_loss()
        except OSError as error:
            raise ParseError(f"{self._path}: {error.strerror}") from error

    def _chunk_after_loss(self) -> bytes:
        with suppress(OSError):
            return os.read(self._file, MAX_BYTES)
        return b""

    def _read(self, line: bytes) -> None:
        record = parse_record(line)
        if record is None:
            return
        if self._next is not None and record.sequence > self._next:
            self._tracker.count_lost(record.sequence - self._next)
        self._next = record.sequence + 1
        if record.facility == KERNEL and may_matter(record.text):
            self._tracker.read(record.text, self._wall_clock())


def explain_denial(error: PermissionError) -> str:
    """Return the reason and the remedy. A device cgroup and a missing capability both give EPERM."""
    if error.errno == errno.EPERM and (has_capability(CAP_SYSLOG) or not _is_restricted()):
        return f"{NOT_PERMITTED}: this container may open no such device; pass it as a device, not as a mount"
    return f"{NOT_PERMITTED}; run as root, or grant CAP_SYSLOG and access to it"


def _is_restricted() -> bool:
    """Return True if the kernel shows its log only with CAP_SYSLOG."""
    return (read_once(DMESG_RESTRICT) or b"1").strip() != b"0"


def open_log(path: Path) -> int:
    """Open the log at its end. Raises `SourceUnavailable` with a remedy if that is not permitted."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except PermissionError as error:
        raise SourceUnavailable(f"{path}: {explain_denial(error)}") from error
    except OSError as error:
        raise SourceUnavailable(f"{path}: {error.strerror}") from error
    found = os.fstat(file)
    # Some containers have a link to the console or to /dev/null there.
    if stat.S_ISDIR(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev != LOG_DEVICE):
        os.close(file)
        raise SourceUnavailable(f"{path}: not the kernel log, which is character device 1:11")
    with suppress(OSError):  # a pipe cannot seek
        os.lseek(file, 0, os.SEEK_END)
    return file
