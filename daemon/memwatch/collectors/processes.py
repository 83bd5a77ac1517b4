"""The processes that hold most memory: pages of all of them, names and homes only of those that are shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from heapq import nlargest
from operator import attrgetter

from memwatch.collector import Findings, Roots, Unavailable, Unreadable
from memwatch.collectors._cgroups import parse_cgroup, place_of
from memwatch.collectors._process_files import (
    STAT_BYTES,
    Passwd,
    Stat,
    parse_boot_time,
    parse_stat,
    parse_uid,
    read_in,
)
from memwatch.collectors._process_table import Entry, ProcessTable
from memwatch.model import Absent, Process, Words
from memwatch.snapshot import ProcessScan

_CGROUP_BYTES = 16384

Home = tuple[Words | None, Words | None]


def home_of(cgroup: bytes | None) -> Home:
    """Unit and container of a process, each None where there is none."""
    if cgroup is None:
        return Absent.NOT_PERMITTED, Absent.NOT_PERMITTED
    place = place_of(parse_cgroup(cgroup))
    return place.unit, place.container


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
        self._table = ProcessTable(self._folder)

    def collect(self) -> Findings:
        tally = self._table.look()  # before anything is opened: it gives files back where the limit was lowered
        self._follow_boot_time()
        self._passwd.refresh()
        listed = self._listed()
        processes = [process for entry in listed if (process := self._process(entry))]
        self._forget_all_but(listed)
        scan = ProcessScan(tally.seen, tally.unreadable + len(listed) - len(processes))
        return Findings(processes=tuple(processes), process_scan=scan, rejected=tally.rejected)

    def close(self) -> None:
        self._table.close()
        os.close(self._folder)

    def _listed(self) -> list[Entry]:
        """The largest, and those that hold a device's memory however small they are."""
        listed = nlargest(self._top, self._table, key=attrgetter("pages", "pid"))
        wanted = set(self._wanted()) - {entry.pid for entry in listed}
        return listed + [entry for entry in self._table if entry.pid in wanted] if wanted else listed

    def _process(self, entry: Entry) -> Process | None:
        """None if it has ended. An open folder of procfs stays with its process, whoever gets the number next."""
        try:
            folder = os.open(str(entry.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return None
        try:
            data = read_in(folder, "stat", STAT_BYTES)
            stat = parse_stat(data) if data else None
            return self._described(stat, folder) if stat and stat.start_ticks == entry.start_ticks else None
        except Unreadable:
            return None
        finally:
            os.close(folder)

    def _described(self, stat: Stat, folder: int) -> Process:
        key = (stat.pid, stat.start_ticks)
        if key not in self._homes:
            self._homes[key] = home_of(read_in(folder, "cgroup", _CGROUP_BYTES))
        unit, container = self._homes[key]
        # Not kept: daemons change their user after they have started.
        uid = parse_uid(read_in(folder, "status", 4096) or b"")
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

    def _forget_all_but(self, listed: list[Entry]) -> None:
        keep = {(entry.pid, entry.start_ticks) for entry in listed}
        self._homes = {key: home for key, home in self._homes.items() if key in keep}
