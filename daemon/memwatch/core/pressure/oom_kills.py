"""New OOM kills: the kernel counts all in /proc/vmstat, counts them in each cgroup, and logs the victims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.kernel_log import KernelLog, OomKill
from memwatch.core.linux.cgroup_kills import HIDDEN_PATHS, CgroupKill, CgroupKills
from memwatch.core.model import Absent
from memwatch.core.snapshot import SHORT_USED, Kernel

# Both are read once a second, and the kernel counts a kill before it logs the victim.
GRACE_SECONDS = 2.5
# The counters of cgroups are read after a kill was counted, which takes some milliseconds. While System RAM is
# short, the kill is the machine's if they do not come: critical is late by one tick at most.
SCAN_SECONDS = 0.9
# A kill that no log names is the machine's if System RAM was short at most this long before it was counted, or at
# the reading before that: a machine that runs out of memory may stand still for longer.
SHORT_SECONDS = 5.0
SCOPES = ("machine", "cgroup", "unknown")
# Fraction of System RAM in use that is a shortage while tasks have to free memory themselves. A kill makes room,
# and a fast program fills a third of the machine between two readings.
RECLAIM_USED = 0.50
# Allocations in that time that had to free memory. Machines with a full page cache have one now and then.
MIN_RECLAIMS = 5
# A kill is counted at most this long before the log names it.
CLAIM_SECONDS = 2.5
# The kernel counts each kill once and logs it once. A count without a line and a line without a count, read
# this far apart, are the same kill: a thread or a file was read late.
SAME_KILL_SECONDS = 60.0


class NewKills(Struct, frozen=True):
    """OOM kills since the previous tick: those that the kernel log names, those without a name that counters of
    cgroups explain, and the number of other counted ones.

    `ram_was_short`: System RAM was short in the seconds before. The count in /proc/vmstat includes kills at the
    limit of any cgroup, so a kill that neither explains says nothing about System RAM by itself. `is_whole`: the
    counters of all cgroups were read. `named_of_own`: those at the limit of memwatchd's own cgroup.
    """

    named: tuple[OomKill, ...] = ()
    unnamed: int = 0
    ram_was_short: bool = False
    of_cgroups: tuple[CgroupKill, ...] = ()
    is_whole: bool = True
    named_of_own: tuple[OomKill, ...] = ()

    @property
    def of_machine(self) -> tuple[OomKill, ...]:
        """Return the named kills for lack of System RAM. The memory of some NUMA nodes is not all of it."""
        wanted = ("machine", "nodes", "unknown") if self.ram_was_short else ("machine",)
        return tuple(kill for kill in self.named if kill.scope in wanted)

    @property
    def by_scope(self) -> Mapping[str, int]:
        """Return the number of kills by the scope that the kernel reports."""
        counts: Counter[str] = Counter(kill.scope if kill.scope in SCOPES else "unknown" for kill in self.named)
        counts["cgroup"] += sum(kill.count for kill in self.of_cgroups)
        counts["unknown"] += self.unnamed
        return counts

    @property
    def unnamed_of_machine(self) -> int:
        return self.unnamed if self.ram_was_short else 0


NO_KILLS = NewKills()


class RamReading(NamedTuple):
    """Use and count of allocations that had to free memory, at a monotonic time."""

    at: float
    used_ratio: float | Absent
    reclaims: int | Absent


class RamShortage(Struct, frozen=True):
    """Readings of System RAM since `SHORT_SECONDS` before the latest one, and the last one before them."""

    readings: tuple[RamReading, ...] = ()

    def with_reading(self, at: float, used_ratio: float | Absent, kernel: Kernel | None) -> RamShortage:
        """Add a reading at the monotonic time `at`. `used_ratio`: fraction of System RAM that is judged as used."""
        reclaims = Absent.NOT_AVAILABLE if kernel is None else kernel.allocstall_total
        if isinstance(reclaims, Absent) and self.readings:
            reclaims = self.readings[-1].reclaims
        readings = (*self.readings, RamReading(at, used_ratio, reclaims))
        first = sum([one.at < at - SHORT_SECONDS for one in readings[:-1]])
        return RamShortage(readings[max(0, first - 1) :])

    @property
    def was_short(self) -> bool:
        """Check the readings. Where use is not known, what tasks had to free decides alone.

        The kernel does not count there what a cgroup at its limit frees.
        """
        used = [one.used_ratio for one in self.readings if not isinstance(one.used_ratio, Absent)]
        most = max(used, default=1.0 if self.readings else 0.0)
        if used and most >= SHORT_USED:
            return True
        known = [one.reclaims for one in self.readings if not isinstance(one.reclaims, Absent)]
        rise = sum([max(0, after - before) for before, after in pairwise(known)])
        return most >= RECLAIM_USED and rise >= MIN_RECLAIMS


class OwnKills(Struct, frozen=True):
    """Kills counted at the limit of the own cgroup so far. `left`: those that no named kill is of, since `at`.

    `held`: named kills at limits, the first one read at `held_since`, that the own count may still claim.
    """

    total: int | None = None
    left: int = 0
    at: float = 0.0
    held: tuple[OomKill, ...] = ()
    held_since: float = 0.0


class OomKillCount(Struct, frozen=True):
    """Counted and named kills so far. `owed`: kills that were counted but not explained, the first one at `since`;
    `owed_while_short`: System RAM was short when one of them was counted.

    `scanned`: kills at limits of cgroups so far, of which `unclaimed`, the last at `scanned_at`, explain none yet.
    `logged`: kills at limits that the log named before the counters of their cgroups were read.

    `nameless`: kills that were reported without a line of the log, the last at `nameless_at`. `uncounted`: lines
    that were reported without a count, the last at `uncounted_at`.
    """

    counted: int | Absent = Absent.NOT_AVAILABLE
    number: int | None = None
    owed: int = 0
    since: float = 0.0
    owed_while_short: bool = False
    shortage: RamShortage = RamShortage()
    scanned: int = 0
    scanned_at: float = 0.0
    unclaimed: tuple[CgroupKill, ...] = ()
    logged: int = 0
    own: OwnKills = OwnKills()
    nameless: int = 0
    nameless_at: float = 0.0
    uncounted: int = 0
    uncounted_at: float = 0.0


def count_new_kills(
    before: OomKillCount,
    kernel: Kernel | None,
    log: KernelLog | None,
    now: float,
    used_ratio: float | Absent = Absent.NOT_AVAILABLE,
    scan: CgroupKills | None = None,
    own_total: int | None = None,
) -> tuple[OomKillCount, NewKills]:
    """Return the new kills at `now` (monotonic). Kills without a name wait for the log and for a scan of cgroups.

    `used_ratio`: fraction of System RAM that is judged as used. `own_total`: kills at the limit of the own cgroup.
    """
    counted, risen = Absent.NOT_AVAILABLE if kernel is None else kernel.oom_kills_total, 0
    shortage = before.shortage.with_reading(now, used_ratio, kernel)
    if counted == before.counted and _is_quiet(before, log, scan, own_total):
        is_whole = scan is None or scan.is_whole
        return replace(before, shortage=shortage), NO_KILLS if is_whole else NewKills(is_whole=False)
    if not isinstance(counted, Absent) and not isinstance(before.counted, Absent):
        risen = max(0, counted - before.counted)
    kills = log.kills if log else ()
    latest = kills[-1].number if kills else 0
    known = latest if before.number is None and log else before.number
    named = tuple(kill for kill in kills if known is not None and kill.number > known)
    owed = before.owed + risen - len(named)
    before, late, early = _match_late(before, owed, len(named), risen, now)
    named, owed = named[late:], owed + late - early
    before = with_scan(before, scan, sum([kill.scope == "cgroup" for kill in named]), now)
    was_short = (before.owed_while_short and before.owed > 0) or ((risen > 0 or bool(named)) and shortage.was_short)
    since = before.since if before.owed else now
    own, named_of_own = claim_own_kills(
        before.own, own_total, named, scan.own if scan else "", now, before.owed > 0
    )
    named = tuple(kill for kill in (*before.own.held, *named) if kill not in own.held)
    new = NewKills(named, 0, was_short, (), scan is None or scan.is_whole, named_of_own)
    after = replace(before, counted=counted, shortage=shortage, number=latest if log else before.number, own=own)
    is_read = own_total is None or own.left >= owed if scan is None else _is_scanned(scan, counted)
    if _has_to_wait(log, is_read, owed, now - since, was_short):
        after = replace(after, owed=owed, since=since, owed_while_short=was_short)
        return after, new
    if owed > 0 and log:
        after = replace(after, nameless=after.nameless + owed, nameless_at=now)
    elif owed < 0:
        after = replace(after, uncounted=after.uncounted - owed, uncounted_at=now)
    of_cgroups, owed, unclaimed = claim(before.unclaimed, owed)
    if scan is None and (mine := min(own.left, owed)) > 0:
        of_cgroups, owed = (CgroupKill(0, mine, "", is_own=True),), owed - mine
        after = replace(after, own=replace(own, left=own.left - mine))
    after = replace(after, owed=0, since=0.0, owed_while_short=False, unclaimed=unclaimed)
    return after, replace(new, unnamed=max(0, owed), of_cgroups=of_cgroups)


def _match_late(
    before: OomKillCount, owed: int, named: int, risen: int, now: float
) -> tuple[OomKillCount, int, int]:
    """Return the lines that are of kills reported without a name, and the counts that are of reported lines.

    A kill that is matched wrongly has its other half left, and is reported by that.
    """
    late = min(max(0, -owed), named, before.nameless if now - before.nameless_at < SAME_KILL_SECONDS else 0)
    early = min(max(0, owed), risen, before.uncounted if now - before.uncounted_at < SAME_KILL_SECONDS else 0)
    if late or early:
        before = replace(before, nameless=before.nameless - late, uncounted=before.uncounted - early)
    return before, late, early


def _is_quiet(before: OomKillCount, log: KernelLog | None, scan: CgroupKills | None, own_total: int | None) -> bool:
    """Check that nothing waits, and that neither the log nor a cgroup has a new kill, as on nearly all ticks."""
    latest = before.number if log is None else log.kills[-1].number if log.kills else 0
    is_claimed = not (before.owed or before.unclaimed or before.logged or before.own.left or before.own.held)
    is_known = latest == before.number and (scan is None or scan.number == before.scanned)
    return is_claimed and is_known and own_total == before.own.total


def _is_scanned(scan: CgroupKills, counted: int | Absent) -> bool:
    return isinstance(counted, Absent) or scan.counted >= counted


def _has_to_wait(log: KernelLog | None, is_read: bool, owed: int, waited: float, was_short: bool) -> bool:
    """Check for kills whose name, or whose cgroup, may still come. A negative `owed` waits for its count.

    `is_read`: the counters of cgroups are known at the time of these kills. Without a scan: that of the own cgroup.
    """
    if log and owed and waited < GRACE_SECONDS:
        return True
    return owed > 0 and not is_read and waited < (SCAN_SECONDS if was_short else GRACE_SECONDS)


def with_scan(before: OomKillCount, scan: CgroupKills | None, logged: int, now: float) -> OomKillCount:
    """Add the kills at limits of cgroups since the last scan, without those that the log named.

    `logged`: number of those that it named since the last tick.
    """
    if scan is None:
        return before if not before.unclaimed else replace(before, unclaimed=(), logged=0)
    known = before.scanned if scan.number >= before.scanned else 0
    new = tuple(kill for kill in scan.kills if kill.number > known)
    if not (new or logged or before.unclaimed or before.logged):
        return before
    since = now if new or logged else before.scanned_at
    is_counted = not isinstance(before.counted, Absent) and before.counted >= scan.counted
    if not before.owed and is_counted and now - since >= GRACE_SECONDS:
        return replace(before, unclaimed=(), logged=0)
    _, left, unclaimed = claim((*before.unclaimed, *new), before.logged + logged)
    return replace(before, scanned=scan.number, scanned_at=since, unclaimed=unclaimed, logged=left)


def claim(kills: Sequence[CgroupKill], wanted: int) -> tuple[tuple[CgroupKill, ...], int, tuple[CgroupKill, ...]]:
    """Take `wanted` kills. Return those taken, the number that is missing, and the rest."""
    taken, rest = [], []
    for kill in kills:
        count = min(kill.count, max(0, wanted))
        wanted -= count
        if count:
            taken.append(replace(kill, count=count))
        if count < kill.count:
            rest.append(replace(kill, count=kill.count - count))
    return tuple(taken), wanted, tuple(rest)


def claim_own_kills(
    before: OwnKills, total: int | None, named: Iterable[OomKill], path: str, now: float, is_owed: bool
) -> tuple[OwnKills, tuple[OomKill, ...]]:
    """Return the kills that are of the own cgroup, whose `path` is that of its namespace.

    `is_owed`: a kill that the machine counted waits for its name, so that its own count is kept as well.
    If the path is hidden, the counter decides. It may be read after the line, which is held for that time. It
    cannot tell kills in several groups apart: none is then its own.
    """
    limited = (*before.held, *(kill for kill in named if kill.scope == "cgroup"))
    risen = max(0, total - before.total) if total is not None and before.total is not None else 0
    left = risen + (before.left if is_owed or now - before.at < CLAIM_SECONDS else 0)
    since = before.held_since if before.held else now
    held: tuple[OomKill, ...] = ()
    if path not in HIDDEN_PATHS:
        own = tuple(kill for kill in limited if is_around(kill.cgroup, path))
    else:
        own = limited[:left] if len({kill.cgroup for kill in limited}) == 1 else ()
        if total is not None and now - since < GRACE_SECONDS:
            held = limited[len(own) :]
    left = max(0, left - len(own))
    return OwnKills(total, left, now if risen else before.at, held, since if held else 0.0), own


def is_around(cgroup: str, path: str) -> bool:
    """Return True for the cgroup in `path`, and for one around it."""
    return cgroup not in HIDDEN_PATHS and PurePosixPath(path).is_relative_to(cgroup)
