"""The processes that hold most memory: one read per process, names and homes only for those that are shown."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from heapq import nlargest
from pathlib import Path
from typing import NamedTuple

from memwatch.collector import Findings, Roots, Unavailable, Unreadable
from memwatch.collectors._cgroups import parse_cgroup, place_of
from memwatch.model import Absent, Process, Words
from memwatch.snapshot import ProcessScan

_KERNEL_THREAD = 0x00200000
_BOOT_TIME = re.compile(rb"^btime (\d{1,12})\n", re.MULTILINE)
_UIDS = re.compile(rb"^Uid:\t\d+\t(\d{1,10})\t", re.MULTILINE)
# A stat line with the longest name and 20 digits in all 50 columns is not longer.
_STAT_BYTES = 1200
_CGROUP_BYTES = 16384

Home = tuple[Words | None, Words | None]


class Stat(NamedTuple):
    """What one read of /proc/<pid>/stat says, so that a reused process id cannot mix two owners.

    Its RSS can be off by some pages per processor since Linux 6.2, which is nothing beside the largest
    processes; the exact sums in smaps have to wait for the process's own lock.
    """

    rss_pages: int
    pid: int
    start_ticks: int
    name: bytes


def parse_stat(data: bytes) -> Stat | None:
    """None for a kernel thread, which has no memory of its own. The name may contain blanks and brackets."""
    front, closing, back = data.rpartition(b")")
    pid, _, name = front.partition(b" (")
    columns = back.split()
    try:
        if not closing or len(columns) < 22 or not data.endswith(b"\n"):
            raise ValueError
        # Columns of proc(5) from the third on: 9 flags, 22 starttime, 24 rss.
        flags, start, rss = int(columns[6]), int(columns[19]), int(columns[21])
        if flags & _KERNEL_THREAD:
            return None
        if start < 0 or rss < 0 or int(pid) < 1:
            raise ValueError
        return Stat(rss, int(pid), start, name)
    except ValueError:
        raise Unreadable(f"stat: {data[:80]!r} is not a line of process statistics") from None


def still_there(before: Stat, data: bytes | None) -> Stat | None:
    """The newer reading of the same process; None if it has ended, even if another has its number now."""
    now = parse_stat(data) if data else None
    return now if now and (now.pid, now.start_ticks) == (before.pid, before.start_ticks) else None


def parse_boot_time(data: bytes) -> int:
    found = _BOOT_TIME.search(data)
    if found is None:
        raise Unreadable("stat has no line btime")
    return int(found[1])


def parse_uid(status: bytes) -> int | None:
    """The effective user id."""
    found = _UIDS.search(status)
    return int(found[1]) if found else None


def parse_passwd(data: bytes) -> dict[int, str]:
    names: dict[int, str] = {}
    for line in data.split(b"\n"):
        columns = line.split(b":")
        if len(columns) >= 3 and columns[0] and columns[2].isdigit() and len(columns[2]) <= 10:
            names.setdefault(int(columns[2]), columns[0].decode("utf-8", "backslashreplace"))
    return names


def home_of(cgroup: bytes | None) -> Home:
    """Unit and container of a process, each None where there is none."""
    if cgroup is None:
        return Absent.NOT_PERMITTED, Absent.NOT_PERMITTED
    place = place_of(parse_cgroup(cgroup))
    return place.unit, place.container


class Passwd:
    """User names by id from the file alone: the system's resolver may ask a network that is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: Mapping[int, str] = {}
        self._changed = -1

    def name(self, uid: int | None) -> Words:
        return Absent.NOT_PERMITTED if uid is None else self._names.get(uid, str(uid))

    def refresh(self) -> None:
        with contextlib.suppress(OSError):
            changed = self._path.stat().st_mtime_ns
            if changed != self._changed:
                self._names, self._changed = parse_passwd(self._path.read_bytes()), changed


class Collector:
    name = "processes"
    may_block = True

    def __init__(
        self,
        roots: Roots,
        top: int = 50,
        period_seconds: float = 10.0,
        page_size: int = 4096,
        clock_ticks: int = 100,
        wanted: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        """`wanted`: processes to list however small they are, because a device says that they hold its memory."""
        self._wanted = wanted
        self.period_seconds = period_seconds
        self._top = top
        self._page_size = page_size
        self._clock_ticks = clock_ticks
        self._boot_time_path = roots.procfs / "stat"
        self._passwd = Passwd(roots.rootfs / "etc/passwd")
        self._boot_time = 0
        self._homes: dict[tuple[int, int], Home] = {}
        try:
            self._folder = os.open(roots.procfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"{roots.procfs}: {error.strerror}") from error

    def collect(self) -> Findings:
        self._follow_boot_time()
        self._passwd.refresh()
        found, seen, unreadable = self._scan()
        wanted = self._wanted()
        top = nlargest(self._top, found)
        if wanted:
            top += [stat for stat in found if stat.pid in wanted and stat not in top]
        processes = [process for stat in top if (process := self._process(stat))]
        self._forget_all_but(top)
        scan = ProcessScan(seen, unreadable + len(top) - len(processes))
        return Findings(processes=tuple(processes), process_scan=scan)

    def close(self) -> None:
        os.close(self._folder)

    def _scan(self) -> tuple[list[Stat], int, int]:
        """All processes that are no kernel threads; how many there were; how many vanished or may not be read."""
        found, unreadable = [], 0
        for entry in os.listdir(self._folder):
            if not entry.isdecimal():
                continue
            data = _read_in(self._folder, entry + "/stat", _STAT_BYTES)
            if data is None:
                unreadable += 1
            elif stat := parse_stat(data):
                found.append(stat)
        return found, len(found) + unreadable, unreadable

    def _process(self, stat: Stat) -> Process | None:
        """None if it has ended. An open folder of procfs stays with its process, whoever gets the number next."""
        try:
            folder = os.open(str(stat.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return None
        try:
            now = still_there(stat, _read_in(folder, "stat", _STAT_BYTES))
            return self._described(now, folder) if now else None
        finally:
            os.close(folder)

    def _described(self, stat: Stat, folder: int) -> Process:
        key = (stat.pid, stat.start_ticks)
        if key not in self._homes:
            self._homes[key] = home_of(_read_in(folder, "cgroup", _CGROUP_BYTES))
        unit, container = self._homes[key]
        # Not kept: daemons change their user after they have started.
        uid = parse_uid(_read_in(folder, "status", 4096) or b"")
        rss = stat.rss_pages * self._page_size
        return Process(
            pid=stat.pid,
            start_time=self._boot_time + stat.start_ticks / self._clock_ticks,
            name=stat.name.decode("utf-8", "backslashreplace"),
            rss_bytes=rss,
            footprint_bytes=rss,
            footprint_basis="rss",
            user=self._passwd.name(uid),
            unit=unit,
            container=container,
        )

    def _follow_boot_time(self) -> None:
        """Boards without a battery boot in 1970 and are told the time later; smaller steps would only make
        the start times, which tell processes apart, waver."""
        boot_time = parse_boot_time(self._boot_time_path.read_bytes())
        if abs(boot_time - self._boot_time) > 2:
            self._boot_time = boot_time

    def _forget_all_but(self, top: list[Stat]) -> None:
        keep = {(stat.pid, stat.start_ticks) for stat in top}
        self._homes = {key: home for key, home in self._homes.items() if key in keep}


def _read_in(folder: int, name: str, size: int) -> bytes | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.read(file, size)
    except OSError:
        return None
    finally:
        os.close(file)
