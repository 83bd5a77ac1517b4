"""OOM kills at the limits of cgroups, without the kernel log."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from memwatch.core.budget import Held, share_out
from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.cgroup_kills import MAX_KILLS, MAX_NAMED, CgroupKill, CgroupKills, KillTree, Rise
from memwatch.core.linux.cgroup_mounts import UNLIMITED_BYTES, V1, find_own_cgroup, parse_limit
from memwatch.core.linux.cgroups import parse_mountinfo
from memwatch.core.linux.files import (
    ALLOCSTALL,
    OOM_KILL,
    Counter,
    ParseError,
    Roots,
    SourceUnavailable,
    kept_file,
    read_once,
)
from memwatch.core.model import Absent
from memwatch.core.printable import printable

# Between two scans without a kill: a scan reads the groups directly below the root, in version 1 all of them.
CALM_SECONDS, MAX_CPU_RATIO = 10.0, 0.001
# A kill during a scan may be in the total and not in the group that was read before.
MAX_SCANS = 3


class Collector(BaseCollector):
    """Compares the counters of cgroups with those at the scan before. A new kill makes it run at once."""

    name = "cgroup_kills"
    may_block = True
    about = (
        "OOM kills at the limits of cgroups: which cgroup, and that it was not the machine that ran out of memory. "
        "Needs no right."
    )

    def __init__(self, roots: Roots, clock: Callable[[], float] = time.monotonic) -> None:
        self.period_seconds: float = CALM_SECONDS
        self._clock = clock
        self._accounts = Accounts(roots.rootfs)
        mountinfo = read_once(roots.procfs / "self/mountinfo") or b""
        self._home = find_own_cgroup(read_once(roots.procfs / "self/cgroup") or b"", mountinfo, roots)
        is_local = any("memory_localevents" in mount.options for mount in parse_mountinfo(mountinfo))
        self._tree = KillTree(self._home.version, self._home.mount, is_local)
        self._kills: deque[CgroupKill] = deque(maxlen=MAX_KILLS)
        self._number = 0
        self._counted, self._reclaims = Counter(OOM_KILL), [Counter(key) for key in ALLOCSTALL]
        self._file = kept_file(roots.procfs / "vmstat")
        try:
            self._read_vmstat()
        except ParseError as error:
            self._file.close()
            raise SourceUnavailable(f"{error} before Linux 4.13") from None
        self._reclaimed = self._count_reclaims()

    def collect(self) -> Findings:
        started, reclaimed = time.thread_time(), self._reclaimed
        for _ in range(MAX_SCANS):
            counted = self._read_vmstat()
            rises, last = self._tree.scan(self._clock()), self._read_vmstat()
            if self._home.version is not V1 or self._count_reclaims() == reclaimed:
                self._add(rises)
            if counted == last:
                break
        self._reclaimed = self._count_reclaims()
        self.period_seconds = max(CALM_SECONDS, (time.thread_time() - started) / MAX_CPU_RATIO)
        # A kill since `counted` is in the next scan.
        kills, own = tuple(self._kills), str(self._home.root / self._home.path)
        return Findings(cgroup_kills=CgroupKills(counted, self._number, kills, self._tree.is_whole, own))

    def close(self) -> None:
        self._file.close()

    def _read_vmstat(self) -> int:
        """Read the counters, and return the number of OOM kills of the whole machine."""
        data = self._file.read()
        for counter in (self._counted, *self._reclaims):
            counter.search(data)
        if isinstance(self._counted.value, Absent):
            raise ParseError(f"{self._file.path}: no line oom_kill")
        return self._counted.value

    def _count_reclaims(self) -> int:
        """Return the allocations that had to free memory of the machine.

        Version 1 counts failed charges, which page cache causes as well. But the machine kills only after direct
        reclaim, which this counts, and groups at their limits do not: a kill without one was for a limit.
        """
        return sum(counter.value for counter in self._reclaims if isinstance(counter.value, int))

    def _add(self, rises: Iterable[Rise]) -> None:
        """Add the kills of MAX_NAMED groups: those with the most of each account in turn. The rest is added up."""
        counts: dict[tuple[Path, bool], int] = defaultdict(int)
        for rise in rises:
            counts[rise.folder, rise.is_inside] += rise.kills
        held = {one: Held(self._accounts.of_cgroup(self._path_of(one[0])), count) for one, count in counts.items()}
        for folder, is_inside in share_out(held, MAX_NAMED):
            count = counts.pop((folder, is_inside))
            self._number += count
            here = PurePosixPath(folder.relative_to(self._home.mount))
            name = printable(self._path_of(folder))
            limit = None if is_inside else self._read_limit(folder)
            is_own = self._home.path.is_relative_to(here)
            self._kills.append(CgroupKill(self._number, count, name, limit, is_inside, is_own))
        others = sum(counts.values())
        if others:
            self._number += others
            self._kills.append(CgroupKill(self._number, others, ""))

    def _path_of(self, folder: Path) -> str:
        return str(PurePosixPath(self._home.root) / folder.relative_to(self._home.mount))

    def _read_limit(self, folder: Path) -> int | None:
        data = read_once(folder / self._home.version.limit)
        try:
            limit = None if data is None else parse_limit(data)
        except ParseError:
            return None
        return limit if limit is not None and limit < UNLIMITED_BYTES else None
