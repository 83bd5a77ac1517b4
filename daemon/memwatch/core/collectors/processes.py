"""The largest processes: resident memory of all processes, names and owners only of the listed ones."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from heapq import nlargest
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector, Host, ScanOptions
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroup_mounts import CgroupUsage
from memwatch.core.linux.cgroups import in_container, sees_all_processes
from memwatch.core.linux.files import ParseError, Roots, kept_folder, read_once
from memwatch.core.linux.process_files import (
    STAT_BYTES,
    Passwd,
    ProcessOwners,
    Stat,
    one_walk,
    open_folder,
    parse_boot_time,
    parse_command,
    parse_stat,
    parse_swap,
    read_at,
)
from memwatch.core.linux.process_owners import (
    ARGUMENT_BYTES,
    ENVIRONMENT_BYTES,
    SHOWN_TURNS,
    OwnerReader,
    PidLists,
    describe_hidden,
    find_rank,
    find_script,
    holds_gpu,
    is_generic,
    split_arguments,
    sum_owners,
)
from memwatch.core.linux.process_table import ProcessEntry, ProcessTable
from memwatch.core.model import Absent, Process, Words
from memwatch.core.owners import FoundProcesses, plain_name, search_text
from memwatch.core.printable import decode
from memwatch.core.snapshot import ProcessScan

# Detection of processes whose parent has ended. Not a collector.

# The kernel gives a child whose parent ended to the nearest subreaper among its ancestors, else to process 1. A
# subreaper that is not process 1 is the manager of a user's services, named `systemd` as well.
INIT = 1
MANAGERS = frozenset({b"systemd", b"init", b"upstart"})
# Worker processes of inference engines name themselves so (setproctitle). They never run on their own.
WORKERS = re.compile(rb"VLLM::|sglang::|ray::")
# Services that start programs for others, which stay in their cgroup.
LAUNCHERS = re.compile(r"(sshd?|crond?|atd|user)(@[^/]*)?\.service")

NameOf = Callable[[int], bytes | None]


def has_lost_parent(stat: Stat, home: ProcessOwners, in_namespace: bool, name_of: NameOf) -> bool:
    """Check if a process was left behind by its parent. `name_of` reads the name of a process.

    A service and a container are supervised, so that no process in one counts. Neither does a leader of its process
    group, unless it is known as a worker: it was started to run alone, by nohup or setsid. Most that count lie in
    the scope of a login session, which systemd keeps until its last process ends, so the unit says nothing.
    `in_namespace`: process 1 is not the machine's, but that of a container, and may be anyone's parent.
    """
    works = WORKERS.match(stat.name) is not None
    if in_namespace or stat.pid == INIT or (stat.group == stat.pid and not works):
        return False
    if not _is_unsupervised(home, works):
        return False
    return stat.parent == INIT or (name_of(stat.parent) in MANAGERS and stat.parent > INIT)


def _is_unsupervised(home: ProcessOwners, works: bool) -> bool:
    if home.names is None or home.names.container or home.names.pod or home.names.job:
        return False
    unit = home.names.unit and plain_name(home.names.unit)
    if unit is None or unit.endswith(".slice"):
        return works
    return unit.endswith(".scope") or LAUNCHERS.fullmatch(unit) is not None


# PIDs of GPU users that /proc does not have. Not a collector.

# Scans in a row without the PID. One is not enough: the process may have ended since the driver listed it.
MIN_SCANS = 2


class Absence(Struct, frozen=True):
    """A missing PID: number of scans without it, and the newest start of any process at the last of them."""

    scans: int
    newest_start: int


class MissingPids:
    """PIDs that a driver lists and /proc does not have, in two scans in a row.

    A missing PID stays missing until the driver drops it, even if a process that started later gets the same PID.
    """

    def __init__(self) -> None:
        self._absences: dict[int, Absence] = {}

    @property
    def are_unconfirmed(self) -> bool:
        """Check if a scan soon is needed to confirm a missing PID."""
        return any(one.scans < MIN_SCANS for one in self._absences.values())

    def update(self, missing: Collection[int], starts: Mapping[int, int], newest_start: int) -> frozenset[int]:
        """Return the missing PIDs. `missing`: in this scan; `starts`: start of the processes with a listed PID."""
        reused = {
            pid: one
            for pid, one in self._absences.items()
            if one.scans >= MIN_SCANS and starts.get(pid, 0) > one.newest_start
        }
        before = self._absences
        self._absences = reused | {
            pid: Absence(before[pid].scans + 1 if pid in before else 1, newest_start) for pid in missing
        }
        return frozenset(pid for pid, one in self._absences.items() if one.scans >= MIN_SCANS)


# Search of the processes that are not listed, by what a scan knows of them. Not a collector.

# Answers that are kept until the next scan: a live page asks for the same words each second.
MAX_ANSWERS = 8


class UnlistedProcesses:
    """The processes of one scan without the listed ones. Reads no file: a search in 10,000 takes 20 ms.

    `build` makes a process of an entry, which the next scan updates meanwhile.
    """

    def __init__(
        self,
        entries: Iterable[ProcessEntry],
        listed: Collection[int],
        user: Callable[[int | None], Words],
        build: Callable[[ProcessEntry], Process],
    ) -> None:
        self._entries, self._listed, self._user, self._build = entries, listed, user, build
        self._answers: dict[tuple[str, int], FoundProcesses] = {}

    def find(self, words: str, names: Mapping[str, str], max_count: int) -> FoundProcesses:
        """Return the processes whose text contains `words`, in lower case. `names`: those of containers by id."""
        answer = self._answers.get((words, max_count))
        if answer is None:
            found = [one for one in self._unlisted() if words in search_text(one.pid, self._texts(one), names)]
            largest = nlargest(max_count, found, key=lambda one: one.pages)
            answer = FoundProcesses(tuple(map(self._build, largest)), len(found))
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[words, max_count] = answer
        return answer

    def by_pid(self, pid: int) -> Process | None:
        """Return one of them, None if it is not among them."""
        return next((self._build(one) for one in self._unlisted() if one.pid == pid), None)

    def _unlisted(self) -> Iterable[ProcessEntry]:
        return (one for one in self._entries if one.pid not in self._listed)

    def _texts(self, entry: ProcessEntry) -> tuple[Words | None, ...]:
        owners = entry.owners.names
        known = (owners.unit, owners.container, owners.pod, owners.job) if owners else ()
        return (entry.script, decode(entry.name), self._user(entry.uid), *known)


# Command lines can be very long, and later arguments may be private.
COMMAND_CHARACTERS = 256
# Mounts, boot time and hidden processes rarely change. The mounts of many containers, and the interrupts in
# /proc/stat on machines with many CPUs, take longer to read than the processes.
RESCAN_TURNS = 6
# A process that freed its device memory is listed for some scans more, to tell it from one that ended.
RECENT_SCANS = 6
# Time until the scan that confirms a missing PID: longer than the period of the drivers' lists.
CONFIRM_SECONDS = 3.0
_SIZE = attrgetter("pages", "pid")


class Collector(BaseCollector):
    name = "processes"
    may_block = True
    fast_seconds: float = 1.0

    def __init__(
        self,
        roots: Roots,
        top: int = 50,
        period_seconds: float = 10.0,
        page_size: int = 4096,
        clock_ticks: int = 100,
        wanted: Callable[[], Set[int]] = frozenset,
        commands: bool = False,
        driver_lists: Callable[[], Mapping[str, frozenset[int]]] = dict,
    ) -> None:
        """`wanted`: processes to list regardless of size, because they hold device memory. `commands`: read command
        lines. `driver_lists`: the PIDs of `wanted` that drivers report."""
        self._wanted = wanted
        self._driver_lists = driver_lists
        self._pid_lists = PidLists()
        self._usual_seconds = period_seconds
        self.period_seconds: float = period_seconds
        self._top = top
        self._page_size = page_size
        self._clock_ticks = clock_ticks
        self._commands = commands
        self._roots = roots
        self._passwd = Passwd(roots.rootfs / "etc/passwd")
        self._usage = CgroupUsage(roots)
        self._boot_time = 0
        self._hidden: str | None = None
        self._in_namespace = False
        self._missing = MissingPids()
        self._recent: dict[int, int] = {}
        self._turn = self._around_due = 0
        self._folder = kept_folder(roots.procfs)
        self._table = ProcessTable(self._folder)
        self._attribution = OwnerReader(self._folder)

    @classmethod
    def create(cls, host: Host) -> Collector:
        scan, ticks = host.options_for(ScanOptions), os.sysconf("SC_CLK_TCK")
        wanted, commands = host.gpu_pids, scan.command_lines
        lists = host.gpu_pids.driver_lists
        return cls(host.roots, scan.top, scan.period_seconds, host.page_size, ticks, wanted, commands, lists)

    @one_walk()
    def collect(self) -> Findings:
        self._turn += 1
        tally = self._table.scan()  # before any open: it closes files if the limit was lowered
        self._passwd.refresh()
        if self._turn >= self._around_due:
            self._rescan()
        listed, missing = self._select_entries()
        processes = [process for entry in listed if (process := self._show(entry))]
        self._attribution.refresh(self._table)
        return Findings(
            processes=tuple(processes),
            process_scan=ProcessScan(
                tally.seen,
                tally.unreadable + len(listed) - len(processes),
                "partial" if self._hidden else "complete",
                self._hidden,
            ),
            missing_pids=missing,
            judged_pids=frozenset(self._recent) if self._in_namespace else None,
            owners=sum_owners(self._table, self._passwd.name, self._page_size, self._usage),
            rejected=tally.rejected,
            unlisted=self._search_beyond(processes),
        )

    def has_news(self) -> bool:
        """Return True if a process that was not looked for before holds device memory now."""
        return not self._wanted() <= self._recent.keys()

    def close(self) -> None:
        self._table.close()
        os.close(self._folder)

    def _rescan(self) -> None:
        """Read boot time, cgroup mounts and process visibility. If that fails, it is due again at the next run."""
        self._follow_boot_time()
        self._usage.refresh()
        contained = in_container(self._roots)
        self._hidden = describe_hidden(self._roots, contained)
        self._in_namespace = not sees_all_processes(read_once(self._roots.procfs / "2/stat"), contained)
        self._around_due = self._turn + RESCAN_TURNS

    def _select_entries(self) -> tuple[list[ProcessEntry], frozenset[int]]:
        """Select the largest processes and all that hold device memory. Return also which of these are missing."""
        pages = sorted([entry.pages for entry in self._table])
        least = pages[-self._top] if 0 < self._top < len(pages) else 0
        large = [entry for entry in self._table if entry.pages >= least]
        listed = sorted(large, key=_SIZE, reverse=True)[: self._top]
        wanted = self._wanted()
        self._recent = {pid: left - 1 for pid, left in self._recent.items() if left > 1} | dict.fromkeys(
            wanted, RECENT_SCANS
        )
        others = self._recent.keys() - {entry.pid for entry in listed}
        if others:
            listed += [entry for entry in self._table if entry.pid in others]
        return listed, self._find_missing(wanted, listed)

    def _find_missing(self, wanted: Collection[int], listed: Iterable[ProcessEntry]) -> frozenset[int]:
        """Return the PIDs that hold device memory and are not in /proc. A new one is checked again soon."""
        starts = {entry.pid: entry.start_ticks for entry in listed if entry.pid in wanted}
        missing = [pid for pid in wanted if pid not in starts and not self._exists(pid)]
        newest = max((entry.start_ticks for entry in self._table), default=0) if missing else 0
        confirmed = self._missing.update(missing, starts, newest)
        if self._in_namespace:
            lists = self._driver_lists()
            confirmed = self._pid_lists.judge(lists, starts, missing, confirmed, self._holds_gpu)
        soon = min(CONFIRM_SECONDS, self._usual_seconds)
        is_open = self._missing.are_unconfirmed or self._pid_lists.are_unconfirmed
        self.period_seconds = soon if is_open else self._usual_seconds
        return confirmed

    def _holds_gpu(self, pid: int) -> bool | None:
        return holds_gpu(self._folder, pid)

    def _exists(self, pid: int) -> bool:
        """Check if /proc has a PID that is not in the table: that of a kernel thread, or a new process."""
        with contextlib.suppress(OSError):
            os.stat(str(pid), dir_fd=self._folder)
            return True
        return False

    def _show(self, entry: ProcessEntry) -> Process | None:
        """Return the cached record if the process is unchanged. Refreshes are spread over runs by PID."""
        moved = entry.said is None or entry.said != entry.shown_by
        if entry.shown is None or moved or (entry.pid + self._turn) % SHOWN_TURNS == 0:
            entry.shown, entry.shown_by = self._process(entry), entry.said
        return entry.shown

    def _process(self, entry: ProcessEntry) -> Process | None:
        """Read a process; None if it ended. An open procfs folder stays with its process if the PID is reused."""
        try:
            with open_folder(self._folder, str(entry.pid)) as folder:
                data = read_at(folder, "stat", STAT_BYTES)
                stat = parse_stat(data) if data else None
                if stat is None or stat.start_ticks != entry.start_ticks:
                    return None
                if entry.thread is None:
                    return self._describe(entry, stat, folder)
            with open_folder(self._folder, entry.thread) as folder:
                return self._describe(entry, stat, folder)
        except (OSError, ParseError):
            return None

    def _describe(self, entry: ProcessEntry, stat: Stat, folder: int) -> Process:
        """`folder`: that of the process, or of another thread if the first one has ended."""
        status = self._attribution.read(entry, folder)
        # The figure of statm in this run is kept: the two differ by some pages, and a listed process would lose its
        # place to an unlisted one of the same size. Without pages, the process or its first thread is ending.
        if entry.said is None:
            entry.pages = stat.rss_pages or entry.pages
        swap = parse_swap(status)
        entry.script, rank = self._identify(stat, folder)
        return replace(
            self._build(entry),
            name=decode(stat.name),
            swap_bytes=Absent.NOT_SUPPORTED if swap is None else swap,
            command=self._command(folder) if self._commands else None,
            orphan=has_lost_parent(stat, entry.owners, self._in_namespace, self._read_name),
            rank=rank,
        )

    def _build(self, entry: ProcessEntry) -> Process:
        """Return a process as the scan knows it, listed or not."""
        rss, home = entry.pages * self._page_size, entry.owners
        return Process(
            pid=entry.pid,
            start_time=self._boot_time + entry.start_ticks / self._clock_ticks,
            name=decode(entry.name),
            rss_bytes=rss,
            footprint_bytes=rss,
            footprint_basis="rss",
            user=self._passwd.name(entry.uid),
            unit=home.owner("unit"),
            container=home.owner("container"),
            pod=home.owner("pod"),
            job=home.owner("job"),
            script=entry.script,
        )

    def _search_beyond(self, listed: Iterable[Process]) -> UnlistedProcesses:
        pids = frozenset(one.pid for one in listed)
        return UnlistedProcesses(tuple(self._table), pids, self._passwd.name, self._build)

    def _identify(self, stat: Stat, folder: int) -> tuple[str | None, int | None]:
        """Return the script and the rank of a Python process. The environment of others is never read, and only of
        processes that hold device memory: ranks share a script."""
        if not is_generic(stat.name):
            return None, None
        argv = split_arguments(read_at(folder, "cmdline", ARGUMENT_BYTES) or b"")
        holds = stat.pid in self._recent
        environment = (read_at(folder, "environ", ENVIRONMENT_BYTES) or b"") if holds else b""
        return find_script(argv), find_rank(argv, environment.split(b"\0"))

    def _read_name(self, pid: int) -> bytes | None:
        with contextlib.suppress(ParseError):
            data = read_at(self._folder, f"{pid}/stat", STAT_BYTES)
            stat = parse_stat(data) if data else None
            return stat.name if stat else None
        return None

    def _command(self, folder: int) -> Words:
        data = read_at(folder, "cmdline", 4 * COMMAND_CHARACTERS)
        return Absent.NOT_PERMITTED if data is None else parse_command(data, COMMAND_CHARACTERS)

    def _follow_boot_time(self) -> None:
        """Read the boot time. Boards without a battery boot in 1970 and set their clock later. Smaller steps are
        ignored: start times identify processes and must be stable."""
        boot_time = parse_boot_time((self._roots.procfs / "stat").read_bytes())
        if abs(boot_time - self._boot_time) > 2:
            self._boot_time = boot_time
            for entry in self._table:
                entry.shown = None
