"""All processes and their resident pages, read from statm files that stay open if possible. Not a collector.

CPU time of one scan of 2,080 sleeping processes on the 2-core machine of tests/bench (Linux 6.18, CPython 3.11):
stat opened, read and closed 21 ms, statm opened, read and closed 15 ms, statm kept open 2.6 ms, psutil 142 ms. An
open statm uses 4.2 KiB of kernel memory (the page that the kernel writes its content to), which is in no process's
RSS.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from memwatch.core.linux.files import ParseError
from memwatch.core.linux.process_files import (
    NO_OWNERS,
    STAT_BYTES,
    STATM_BYTES,
    STATUS_BYTES,
    ProcessOwners,
    find_living_thread,
    parse_stat,
    parse_statm,
    read_at,
)
from memwatch.core.model import Process

# The kernel uses 4.2 KiB for each open file of a process (measured, Linux 6.18).
MAX_DESCRIPTORS_FOR_PROCESSES = 8192
# With a lower soft limit no file of a process stays open.
MIN_DESCRIPTORS_TO_SHARE = 512


def descriptors_for_processes(limit: int) -> int:
    """Return how many files of processes may stay open: half the soft limit, the rest is for clients."""
    if limit == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS_FOR_PROCESSES
    return 0 if limit < MIN_DESCRIPTORS_TO_SHARE else min(limit // 2, MAX_DESCRIPTORS_FOR_PROCESSES)


# The id of a kernel thread may be reused by a process, so each is read again in every 16th scan.
KERNEL_TURNS = 16
# /proc is listed at least in every sixth scan, once per minute, even if no process id was allocated: CRIU restores
# processes with ids of its choice.
LISTED_TURNS = 6
_OWN_NUMBERS = re.compile(rb"^NSpid:((?:\t\d+)+)\n", re.MULTILINE)

ReadResult = Literal["seen", "unreadable", "rejected"]


def count_free_descriptors() -> int:
    """Return the number of statm files that may stay open under this process's current descriptor limit."""
    return descriptors_for_processes(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class ProcessEntry(Struct):
    """A process that existed in the last scan.

    `descriptor` is its open statm, -1 if that file does not exist, None if the limit of open files was reached.
    A kernel thread never has pages. `thread` is the folder of a living thread if the main thread has ended, whose
    files are then empty. `said` is the last content of the open statm. `owners` and `uid` are its owners, and
    `owners_due` is the turn at which to read them again, with its `name` and `script`. `shown` is its last
    published record, None if it has to be read again, and `shown_by` is the content of statm at that time. The
    table stores these seven for its users.
    """

    pid: int
    start_ticks: int
    pages: int
    is_kernel: bool = False
    descriptor: int | None = None
    thread: str | None = None
    said: bytes | None = None
    owners: ProcessOwners = NO_OWNERS
    uid: int | None = None
    owners_due: int = 0
    name: bytes = b""
    script: str | None = None
    shown: Process | None = None
    shown_by: bytes | None = None


class ScanResult(Struct, frozen=True):
    """Counts of one scan, without kernel threads. `rejected`, a part of `unreadable`, had invalid content."""

    seen: int
    unreadable: int
    rejected: int


class NewProcessCheck:
    """The kernel's last allocated process id. If it did not change since the last scan, no process has started.

    Listing /proc takes a sixth of a scan of 400 processes, and on a quiet machine rarely finds a new one. The last
    column of loadavg is the id allocated last, to a thread or a process in the reader's PID namespace or one inside
    it (fs/proc/loadavg.c). The reader's namespace must be that of the folder: then our process has exactly one id
    there (NSpid, since Linux 4.1). lxcfs mounts its own file over loadavg, and gVisor always prints 0.
    """

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._is_reliable = _is_kernel_file(folder, "loadavg") and _count_own_ids(folder) == 1
        self._last: bytes | None = None

    def has_changed(self) -> bool:
        """Return True if an id was allocated since the last call, or if that is unknown."""
        before, self._last = self._last, self._newest()
        return self._last is None or self._last != before

    def _newest(self) -> bytes | None:
        columns = (read_at(self._folder, "loadavg", STATM_BYTES) or b"").split() if self._is_reliable else []
        return columns[4] if len(columns) == 5 and columns[4].isdigit() and columns[4] != b"0" else None


def _is_kernel_file(folder: int, name: str) -> bool:
    """Return True if the file is on the folder's own file system, with nothing mounted over it."""
    try:
        return os.stat(name, dir_fd=folder).st_dev == os.fstat(folder).st_dev
    except OSError:
        return False


def _count_own_ids(folder: int) -> int:
    """Return in how many PID namespaces this process has an id, from the folder's on inwards. 0 if unknown."""
    found = _OWN_NUMBERS.search(read_at(folder, "self/status", STATUS_BYTES) or b"")
    return found[1].count(b"\t") if found else 0


class ProcessTable:
    """The current processes.

    An open statm belongs to its process: after its end reading fails, even if the id was reused. Without an open
    file the start time identifies the process.
    """

    def __init__(self, folder: int, room: Callable[[], int] = count_free_descriptors) -> None:
        self._folder = folder
        self._room = room
        self._kept = 0
        self._max_descriptors = 0
        self._turn = 0
        self._numbers = NewProcessCheck(folder)
        self._present: set[str] = set()
        self._entries: dict[str, ProcessEntry] = {}
        self._processes: list[ProcessEntry] = []

    def __iter__(self) -> Iterator[ProcessEntry]:
        """Iterate over the processes of the last scan, without kernel threads."""
        return iter(self._processes)

    def scan(self) -> ScanResult:
        """Scan all processes and update their pages."""
        self._make_room()
        gone, rejected = self._read_known()
        if self._numbers.has_changed() or gone or self._turn % LISTED_TURNS == 0:
            self._present = {name for name in os.listdir(self._folder) if name.isdecimal()}
        for name in self._entries.keys() - self._present:
            self._drop(name)
        added = Counter(self._add(name) for name in self._present - self._entries.keys())
        rejected += added["rejected"]
        unreadable = added["unreadable"] + added["rejected"]
        self._processes = [entry for entry in self._entries.values() if not entry.is_kernel]
        return ScanResult(len(self._processes) + unreadable, unreadable, rejected)

    def close(self) -> None:
        for name in list(self._entries):
            self._drop(name)

    def _read_known(self) -> tuple[int, int]:
        """Read the known processes and drop those that ended. Return (number dropped, number with invalid data)."""
        gone, rejected, pread = [], 0, os.pread
        self._turn += 1
        for name, entry in self._entries.items():
            descriptor = entry.descriptor
            try:
                if descriptor is not None and descriptor >= 0:
                    data = pread(descriptor, STATM_BYTES, 0)
                    if data != entry.said:
                        pages = parse_statm(data)
                        if entry.pages and not pages:  # the process or its main thread has ended: add it again
                            gone.append(name)
                        entry.pages, entry.said = pages, data
                elif entry.is_kernel and (entry.pid + self._turn) % KERNEL_TURNS:
                    continue
                elif not self._reread(name, entry):
                    gone.append(name)
            except OSError:
                gone.append(name)
            except ParseError:
                gone.append(name)
                rejected += 1
        for name in gone:
            self._drop(name)
        return len(gone), rejected

    def _reread(self, name: str, entry: ProcessEntry) -> bool:
        """Read a process without an open file. False if it has ended."""
        data = read_at(self._folder, name + "/stat", STAT_BYTES)
        if not data:
            return False
        stat = parse_stat(data)
        if stat is None or stat.start_ticks != entry.start_ticks:
            return stat is None and entry.is_kernel
        entry.pages = stat.rss_pages
        self._follow_thread(name, entry)
        if entry.descriptor is None:
            entry.descriptor = self._keep_statm(entry.thread or name)
        return True

    def _follow_thread(self, name: str, entry: ProcessEntry) -> None:
        """Use the pages of a living thread if the process seems to have none."""
        if not entry.pages:
            found = find_living_thread(self._folder, name + "/task")
            entry.thread, entry.pages = found or (None, 0)

    def _add(self, name: str) -> ReadResult:
        """Add a new process. The result is "unreadable" also if it has ended meanwhile.

        statm is opened first: if the id is reused before stat is read, the open file belongs to the ended process,
        and the next scan detects that.
        """
        descriptor = self._keep_statm(name)
        data = read_at(self._folder, name + "/stat", STAT_BYTES)
        try:
            stat = parse_stat(data) if data else None
        except ParseError:
            self._close(descriptor)
            return "rejected"
        if stat is not None:
            entry = ProcessEntry(stat.pid, stat.start_ticks, stat.rss_pages, descriptor=descriptor)
            self._entries[name] = entry
            self._follow_thread(name, entry)
            if entry.thread:
                self._close(descriptor)
                entry.descriptor = self._keep_statm(entry.thread)
            return "seen"
        self._close(descriptor)
        if not data:
            return "unreadable"
        self._entries[name] = ProcessEntry(int(name), 0, 0, is_kernel=True, descriptor=-1)
        return "seen"

    def _keep_statm(self, name: str) -> int | None:
        """Open statm. None if the limit of open files is reached, -1 if the file does not exist."""
        if self._kept >= self._max_descriptors:
            return None
        try:
            descriptor = os.open(name + "/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError as error:
            return -1 if error.errno == errno.ENOENT else None
        self._kept += 1
        return descriptor

    def _make_room(self) -> None:
        """Close files if the limit was lowered."""
        self._max_descriptors = self._room()
        for entry in self._entries.values() if self._kept > self._max_descriptors else ():
            if self._kept > self._max_descriptors and self._close(entry.descriptor):
                entry.descriptor = entry.said = None

    def _drop(self, name: str) -> None:
        self._close(self._entries.pop(name).descriptor)

    def _close(self, descriptor: int | None) -> bool:
        if descriptor is None or descriptor < 0:
            return False
        os.close(descriptor)
        self._kept -= 1
        return True
