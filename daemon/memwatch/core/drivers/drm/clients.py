"""Scan of all processes for open graphics devices, and their fdinfo. Not a collector."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from memwatch.core.drivers.drm.fdinfo import ClientDescriptor, Fdinfo, parse_fdinfo
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.linux.process_files import KERNEL_THREAD, STAT_BYTES, find_living_thread, open_folder, read_at

# Targets of descriptors' links; for a process with another root, its path precedes /dev. No device is opened.
_DEVICES = re.compile(r"(.*)/dev/(?:dri|accel)/([^/ ]+)(?: \(deleted\))?")
# States in /proc/<pid>/stat of tasks that have ended: zombie and dead.
_ENDED = ([b"Z"], [b"X"])
_FDINFO_BYTES = 16384
# Maximum number of scans between two reads of a process's descriptors when it appears unchanged.
QUIET_ROUNDS = 60
QUIET_ROUNDS_UNCOUNTED = 2
HOLDER_ROUNDS = 6
# Reading a descriptor's link takes 3 µs. A process with many descriptors is read one scan later for each of these.
DESCRIPTORS_A_ROUND = 512


class Scan(Struct, frozen=True):
    """Result of one scan. `seen` counts processes, `unreadable` those whose descriptors could not be read.

    `mute`: device files whose driver has no client statistics, with the processes that have them open.
    """

    held: tuple[ClientDescriptor, ...]
    seen: int
    unreadable: int
    mute: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class _Descriptor(Struct):
    fd: str
    node: str
    info: Fdinfo | None = None


class _ProcessState(Struct):
    """Cached state of one process.

    `place` is the folder with its descriptors: its own, or another thread's if the main thread has ended.
    """

    mark: tuple[int, int, int]
    place: str
    due: int = 0
    earliest: int = 0
    opens_nothing: bool = False
    is_readable: bool = True
    descriptors: list[_Descriptor] = field(default_factory=list)


# Process ids by device file.
_Mute = dict[str, set[int]]


class ClientScanner:
    """All processes' descriptors of graphics devices, without reading all links of all processes in every scan.

    One `stat` of /proc/<pid>/fd returns two facts. The inode identifies the process (a reused process id has
    another one), and since Linux 6.2 the size is the number of open descriptors. A process's links are read when it
    is new, when that number changed, and otherwise every `QUIET_ROUNDS` scans, in case it closed as many
    descriptors as it opened. Before 6.2 the number is 0, and every process is read in every second scan.
    """

    def __init__(self, procfs: Path) -> None:
        try:
            self._folder = os.open(procfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceUnavailable(f"{procfs}: {error.strerror}") from error
        self._known: dict[str, _ProcessState] = {}
        self._round = 0

    def scan(self, asleep: Collection[str] = ()) -> Scan:
        """Scan all processes. `asleep`: nodes whose clients are not read, because that would wake the device."""
        self._round += 1
        before, self._known = self._known, {}
        held: list[ClientDescriptor] = []
        mute: _Mute = {}
        seen = unreadable = 0
        for pid in os.listdir(self._folder):
            if not pid.isdecimal():
                continue
            known = self._follow(pid, before.get(pid))
            if known is None:
                continue
            self._known[pid] = known
            if known.opens_nothing:
                continue
            seen += 1
            if not known.is_readable or (known.descriptors and not self._read(pid, known, asleep, held, mute)):
                unreadable += 1
        return Scan(tuple(held), seen, unreadable, {node: tuple(sorted(mute[node])) for node in sorted(mute)})

    def close(self) -> None:
        os.close(self._folder)

    def _follow(self, pid: str, known: _ProcessState | None) -> _ProcessState | None:
        """Return the process's current state, or None if it has ended, which does not count as unreadable."""
        place = known.place if known else pid
        try:
            mark = self._mark(place)
        except FileNotFoundError:
            return None if place == pid else self._follow(pid, None)
        except OSError:
            return known or _ProcessState((0, 0, 0), pid, is_readable=False)
        if known is None or known.mark[0] != mark[0]:
            return self._look_through(pid, place, mark, [])
        if known.opens_nothing or self._round < (known.due if known.mark == mark else known.earliest):
            return known
        return self._look_through(pid, place, mark, known.descriptors)

    def _mark(self, place: str) -> tuple[int, int, int]:
        status = os.stat(place + "/fd", dir_fd=self._folder)
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _look_through(
        self, pid: str, place: str, mark: tuple[int, int, int], before: list[_Descriptor]
    ) -> _ProcessState | None:
        """Read a process's links. `before`: its previous descriptors, kept for devices that are asleep now."""
        known = _ProcessState(mark, place)
        try:
            count, known.descriptors = self._descriptors(place)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            count, known.is_readable = 0, False
        if not count and place == pid and (thread := self._other_thread(pid)):
            with suppress(OSError):  # the thread may have ended since; the next scan tries again
                return self._look_through(pid, thread, self._mark(thread), before)
        infos = {(one.fd, one.node): one.info for one in before}
        for one in known.descriptors:
            one.info = infos.get((one.fd, one.node))
        known.opens_nothing = not known.descriptors and self._opens_nothing(pid)
        known.earliest = self._round + count // DESCRIPTORS_A_ROUND
        # Spread the reads over the scans.
        rounds = self._rounds(known)
        known.due = known.earliest + 1 + rounds // 3 + int(pid) % max(1, rounds - rounds // 3)
        return known

    def _rounds(self, known: _ProcessState) -> int:
        if known.descriptors:
            return HOLDER_ROUNDS
        return QUIET_ROUNDS if known.mark[2] or not known.is_readable else QUIET_ROUNDS_UNCOUNTED

    def _descriptors(self, place: str) -> tuple[int, list[_Descriptor]]:
        """Return (number of descriptors, those of devices). PermissionError if another user owns the process."""
        found = []
        with open_folder(self._folder, place + "/fd") as folder:
            every = os.listdir(folder)
            for fd in every:
                with suppress(FileNotFoundError):
                    node = _DEVICES.fullmatch(os.readlink(fd, dir_fd=folder))
                    if node and self._is_device(f"{place}/fd/{fd}", f"{place}/root", node[1]):
                        found.append(_Descriptor(fd, node[2]))
        return len(every), found

    def _is_device(self, descriptor: str, root: str, before: str) -> bool:
        """Return False for a file of a user at a path such as /home/eve/dev/dri/renderD128.

        `before`: the path before /dev. Only root can make files in /dev of the machine.
        """
        with suppress(OSError):
            if before and os.readlink(root, dir_fd=self._folder) != before:
                return False
            return stat.S_ISCHR(os.stat(descriptor, dir_fd=self._folder).st_mode)
        return True

    def _read(
        self, pid: str, known: _ProcessState, asleep: Collection[str], held: list[ClientDescriptor], mute: _Mute
    ) -> bool:
        """Add this process's clients to `held`, and its nodes without statistics to `mute`.

        False if a part could not be read.
        """
        complete = True
        for one in known.descriptors:
            if one.node not in asleep:
                data = read_at(self._folder, f"{known.place}/fdinfo/{one.fd}", _FDINFO_BYTES)
                one.info = parse_fdinfo(data) if data is not None else None
                if data is not None and one.info is None:
                    if self._leads_to(known.place, one):
                        mute.setdefault(one.node, set()).add(int(pid))
                    else:  # the descriptor is now a file or a socket: read the process again in the next scan
                        known.due = 0
                complete = complete and data is not None
            elif one.info is None:
                complete = False
            if one.info is not None:
                held.append(ClientDescriptor(int(pid), one.node, one.info))
        return complete

    def _leads_to(self, place: str, one: _Descriptor) -> bool:
        try:
            node = _DEVICES.fullmatch(os.readlink(f"{place}/fd/{one.fd}", dir_fd=self._folder))
        except OSError:
            return False
        return node is not None and node[2] == one.node

    def _other_thread(self, pid: str) -> str | None:
        """Return the folder of a living thread if the main thread has ended. It shares the open descriptors."""
        if self._columns(pid)[:1] not in _ENDED:
            return None
        thread = find_living_thread(self._folder, pid + "/task")
        return thread[0] if thread else None

    def _opens_nothing(self, pid: str) -> bool:
        """Return True for a kernel thread or a zombie."""
        columns = self._columns(pid)
        if columns[:1] in _ENDED:
            return columns[17:18] in ([b"0"], [b"1"])  # num_threads
        return len(columns) > 6 and columns[6].isdigit() and bool(int(columns[6]) & KERNEL_THREAD)

    def _columns(self, pid: str) -> list[bytes]:
        """Return the columns of /proc/<pid>/stat, beginning with the state."""
        return (read_at(self._folder, pid + "/stat", STAT_BYTES) or b"").rpartition(b")")[2].split()
