"""Ends of the largest processes, reported by the kernel as they happen (pidfd_open(2))."""

from __future__ import annotations

import array
import fcntl
import logging
import os
import resource
import select
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.budget import Held, share_out
from memwatch.core.kernel_log import ProcessEnd
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.process_table import descriptors_for_processes
from memwatch.core.linux.wakeups import Wake
from memwatch.core.model import Absent, Process, known_or

log: logging.Logger = logging.getLogger(__name__)

# The largest processes: enough for the memory that matters, and few descriptors.
MAX_FOLLOWED = 16
# One user with 16 large processes hides the end of no other's.
MAX_OF_ACCOUNT = 12
# include/uapi/linux/pidfd.h: `_IOWR(0xFF, 11, struct pidfd_info)` with the first 64 bytes of the structure, and the
# flag that asks for the wait status. Since Linux 6.15 a pidfd has it, once the parent has reaped the process.
_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_EXIT = 1 << 3
_STATUS_AT = 60
# Time in which a parent usually reaps its child.
REAP_SECONDS = 2.0


class ProcessEnds:
    """Follows the largest processes. One epoll file stands for all of them, so the loop watches one file.

    `ended` has the start times, by PID, of those that ended; the reader removes what it has no use for. Not
    thread-safe: call it from the thread that ticks.
    """

    event_mask: int = select.POLLIN

    def __init__(self, wall_clock: Callable[[], float] = time.time, accounts: Accounts | None = None) -> None:
        self._wall_clock = wall_clock
        self._accounts = accounts or Accounts(Path("/"))
        self._files: dict[int, int] = {}
        self._ended: list[tuple[ProcessEnd, int]] = []
        self._followed: frozenset[int] = frozenset()
        self._starts: dict[int, float | Absent] = {}
        self.ended: dict[int, float | Absent] = {}
        self._poll: select.epoll | None = None
        if hasattr(os, "pidfd_open"):
            self._poll = select.epoll()

    @property
    def event_file(self) -> int:
        return -1 if self._poll is None else self._poll.fileno()

    def follow(self, processes: Sequence[Process]) -> None:
        """Follow the largest of these processes from now on, of one account those of MAX_OF_ACCOUNT first."""
        if self._poll is None:
            return
        shared = descriptors_for_processes(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        sizes = {
            number: Held(self._accounts.of_user(known_or(one.user, None)), known_or(one.footprint_low_bytes, 0))
            for number, one in enumerate(processes)
        }
        most = min(MAX_FOLLOWED, shared)
        largest = [processes[number] for number in share_out(sizes, most, MAX_OF_ACCOUNT)]
        wanted = frozenset(process.pid for process in largest if process.visible)
        self._starts = {process.pid: process.start_time for process in largest}
        if wanted == self._followed:
            return
        self._followed = wanted
        for pid in self._files.keys() - wanted:
            self._release(pid)
        for pid in wanted - self._files.keys():
            with suppress(OSError):  # it ended, or the limit of open files is reached
                self._files[pid] = os.pidfd_open(pid)
                self._poll.register(self._files[pid], select.EPOLLIN)

    def read_event(self, happened: int) -> Wake:
        """Read the ends. Each needs a tick: memory came back."""
        if self._poll is None or not happened:
            return Wake.DUE
        ready = {file for file, _ in self._poll.poll(0)}
        ended = [pid for pid, file in self._files.items() if file in ready]
        for pid in ended:
            file = self._files.pop(pid)
            self._poll.unregister(file)
            self._ended.append((ProcessEnd(pid, self._wall_clock()), file))
            if pid in self._starts:
                self.ended[pid] = self._starts[pid]
        return Wake.NEWS if ended else Wake.DUE

    def take(self) -> tuple[ProcessEnd, ...]:
        """Return the ends since the last call. One without a status is kept until its process is reaped."""
        if not self._ended:
            return ()
        ended, self._ended = self._ended, []
        return tuple(end for one in ended if (end := self._finish(*one)) is not None)

    def _finish(self, end: ProcessEnd, file: int) -> ProcessEnd | None:
        status = read_status(file)
        if status is None and self._wall_clock() - end.unix < REAP_SECONDS:
            self._ended.append((end, file))
            return None
        os.close(file)
        return replace(end, status=status)

    def close(self) -> None:
        for _, file in self._ended:
            os.close(file)
        self._ended = []
        for pid in list(self._files):
            self._release(pid)
        if self._poll is not None:
            self._poll.close()
            self._poll = None

    def _release(self, pid: int) -> None:
        file = self._files.pop(pid)
        with suppress(OSError):
            os.close(file)  # also removes it from the epoll file


def read_status(file: int) -> int | None:
    """Return the wait status of an ended process, None if this kernel does not report it."""
    info = array.array("B", struct.pack("<Q", _EXIT).ljust(64, b"\0"))
    try:
        fcntl.ioctl(file, _GET_INFO, info)
    except OSError as error:
        log.debug("no wait status: %s", error)
        return None
    (mask,) = struct.unpack_from("<Q", info)
    (status,) = struct.unpack_from("<i", info, _STATUS_AT)
    return int(status) if mask & _EXIT else None
