"""All processes and their resident pages, with a file kept open for each as far as descriptors go. No collector.

2,080 sleeping processes on the 2-core machine of tests/bench (Linux 6.18, CPython 3.11), processor time of one
look at all of them: stat opened, read and closed 21 ms, statm the same way 15 ms, statm kept open 2.6 ms, psutil
142 ms. A kept statm costs 4.2 KiB of kernel memory (the page that the kernel writes it into), which is in
no process's RSS.
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

from memwatch.linux.files import Unreadable
from memwatch.linux.process_files import (
    NOWHERE,
    STAT_BYTES,
    STATM_BYTES,
    STATUS_BYTES,
    Home,
    living_thread,
    parse_stat,
    parse_statm,
    read_in,
)
from memwatch.model import Process
from memwatch.runtime.limits import descriptors_for_processes

# A kernel thread's number may go to a process, so each is looked at again at every 16th look.
KERNEL_TURNS = 16
# The folder is listed at every sixth look, once a minute, whatever the kernel says of numbers given out: a program
# that is restored (CRIU) chooses its own.
LISTED_TURNS = 6
_OWN_NUMBERS = re.compile(rb"^NSpid:((?:\t\d+)+)\n", re.MULTILINE)

Came = Literal["seen", "unreadable", "rejected"]


def room_here() -> int:
    """How many processes may have a file kept open, by this process's limit of now."""
    return descriptors_for_processes(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class Entry(Struct):
    """A process that was there at the last look.

    `descriptor` is its open statm; -1 where there is none to be opened, None where there was no room for it.
    A kernel thread has no pages, ever. `thread` is the folder of another thread where the first one has ended,
    whose files then say nothing. `said` is what the open statm said last. `home` and `uid` are whose it is,
    and `home_due` the turn at which to read them again; `shown` is how it was last shown, None where it has to be
    read anew, and `shown_by` what statm said then: these are the table's to keep and not its business.
    """

    pid: int
    start_ticks: int
    pages: int
    is_kernel: bool = False
    descriptor: int | None = None
    thread: str | None = None
    said: bytes | None = None
    home: Home = NOWHERE
    uid: int | None = None
    home_due: int = 0
    shown: Process | None = None
    shown_by: bytes | None = None


class Tally(Struct, frozen=True):
    """What a look at the process table came to, kernel threads left out. `rejected` of the `unreadable` ones made
    no sense."""

    seen: int
    unreadable: int
    rejected: int


class Numbers:
    """The process numbers that the kernel gives out. Where none was since the last look, nobody has begun since.

    Listing /proc is a sixth of a look at 400 processes, and on a quiet machine seldom finds anybody. The last
    column of loadavg is the number given out last, to a thread or a process of the process id namespace of whoever
    reads it, or of one inside (fs/proc/loadavg.c). That has to be the one that the folder shows: then it has just
    one number for us (NSpid, since Linux 4.1). lxcfs puts a file of its own there, and gVisor says 0.
    """

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._is_told = _is_the_kernels(folder, "loadavg") and _numbers_of_own(folder) == 1
        self._last: bytes | None = None

    def moved(self) -> bool:
        """Whether any was given out since this was asked last; True where that is not known."""
        before, self._last = self._last, self._newest()
        return self._last is None or self._last != before

    def _newest(self) -> bytes | None:
        columns = (read_in(self._folder, "loadavg", STATM_BYTES) or b"").split() if self._is_told else []
        return columns[4] if len(columns) == 5 and columns[4].isdigit() and columns[4] != b"0" else None


def _is_the_kernels(folder: int, name: str) -> bool:
    """Whether this file is of the folder's own file system, and nobody's who mounted another over it."""
    try:
        return os.stat(name, dir_fd=folder).st_dev == os.fstat(folder).st_dev
    except OSError:
        return False


def _numbers_of_own(folder: int) -> int:
    """In how many process id namespaces this process has a number, seen from the folder's one; 0 if not known."""
    found = _OWN_NUMBERS.search(read_in(folder, "self/status", STATUS_BYTES) or b"")
    return found[1].count(b"\t") if found else 0


class ProcessTable:
    """Who is there. An open statm stays with its process: once that has ended it answers nothing, whoever got the
    number since. Where no file is kept, the start time says whether it is the same process."""

    def __init__(self, folder: int, room: Callable[[], int] = room_here) -> None:
        self._folder = folder
        self._room = room
        self._kept = 0
        self._most = 0
        self._turn = 0
        self._numbers = Numbers(folder)
        self._present: set[str] = set()
        self._entries: dict[str, Entry] = {}
        self._processes: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        """The processes of the last look that are no kernel threads."""
        return iter(self._processes)

    def look(self) -> Tally:
        """See who is there and what they hold."""
        self._make_room()
        gone, rejected = self._read_known()
        if self._numbers.moved() or gone or self._turn % LISTED_TURNS == 0:
            self._present = {name for name in os.listdir(self._folder) if name.isdecimal()}
        for name in self._entries.keys() - self._present:
            self._drop(name)
        came = Counter(self._introduce(name) for name in self._present - self._entries.keys())
        rejected += came["rejected"]
        unreadable = came["unreadable"] + came["rejected"]
        self._processes = [entry for entry in self._entries.values() if not entry.is_kernel]
        return Tally(len(self._processes) + unreadable, unreadable, rejected)

    def close(self) -> None:
        for name in list(self._entries):
            self._drop(name)

    def _read_known(self) -> tuple[int, int]:
        """Ask those that were there, forget who is not: how many, and how many of them answered nonsense."""
        gone, rejected, pread = [], 0, os.pread
        self._turn += 1
        for name, entry in self._entries.items():
            descriptor = entry.descriptor
            try:
                if descriptor is not None and descriptor >= 0:
                    data = pread(descriptor, STATM_BYTES, 0)
                    if data != entry.said:
                        pages = parse_statm(data)
                        if entry.pages and not pages:  # it has ended, or only its first thread: see who is there
                            gone.append(name)
                        entry.pages, entry.said = pages, data
                elif entry.is_kernel and (entry.pid + self._turn) % KERNEL_TURNS:
                    continue
                elif not self._read_anew(name, entry):
                    gone.append(name)
            except OSError:
                gone.append(name)
            except Unreadable:
                gone.append(name)
                rejected += 1
        for name in gone:
            self._drop(name)
        return len(gone), rejected

    def _read_anew(self, name: str, entry: Entry) -> bool:
        """Without a kept file. False if this process is not there any more."""
        data = read_in(self._folder, name + "/stat", STAT_BYTES)
        if not data:
            return False
        stat = parse_stat(data)
        if stat is None or stat.start_ticks != entry.start_ticks:
            return stat is None and entry.is_kernel
        entry.pages = stat.rss_pages
        self._follow_thread(name, entry)
        if entry.descriptor is None:
            entry.descriptor = self._kept_statm(entry.thread or name)
        return True

    def _follow_thread(self, name: str, entry: Entry) -> None:
        """Who has no pages may have them all in other threads."""
        if not entry.pages:
            found = living_thread(self._folder, name + "/task")
            entry.thread, entry.pages = found or (None, 0)

    def _introduce(self, name: str) -> Came:
        """A process not seen before; "unreadable" also where it has ended meanwhile.

        statm is opened first: if the number changes hands before stat is read, the open file is the one that has
        ended, and the next look finds that out.
        """
        descriptor = self._kept_statm(name)
        data = read_in(self._folder, name + "/stat", STAT_BYTES)
        try:
            stat = parse_stat(data) if data else None
        except Unreadable:
            self._close(descriptor)
            return "rejected"
        if stat is not None:
            entry = Entry(stat.pid, stat.start_ticks, stat.rss_pages, descriptor=descriptor)
            self._entries[name] = entry
            self._follow_thread(name, entry)
            if entry.thread:
                self._close(descriptor)
                entry.descriptor = self._kept_statm(entry.thread)
            return "seen"
        self._close(descriptor)
        if not data:
            return "unreadable"
        self._entries[name] = Entry(int(name), 0, 0, is_kernel=True, descriptor=-1)
        return "seen"

    def _kept_statm(self, name: str) -> int | None:
        """None while there is no room; -1 where there is no such file."""
        if self._kept >= self._most:
            return None
        try:
            descriptor = os.open(name + "/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError as error:
            return -1 if error.errno == errno.ENOENT else None
        self._kept += 1
        return descriptor

    def _make_room(self) -> None:
        """Give files back where the limit was lowered."""
        self._most = self._room()
        for entry in self._entries.values() if self._kept > self._most else ():
            if self._kept > self._most and self._close(entry.descriptor):
                entry.descriptor = entry.said = None

    def _drop(self, name: str) -> None:
        self._close(self._entries.pop(name).descriptor)

    def _close(self, descriptor: int | None) -> bool:
        if descriptor is None or descriptor < 0:
            return False
        os.close(descriptor)
        self._kept -= 1
        return True
