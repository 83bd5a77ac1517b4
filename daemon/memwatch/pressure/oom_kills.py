"""New OOM kills, and whether System RAM was short: the kernel counts kills in /proc/vmstat and logs the victims."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from memwatch.kernel_log import KernelLog, OomKill
from memwatch.model import Absent
from memwatch.snapshot import Kernel

# Both are read once a second, and the kernel counts a kill before it logs the victim.
GRACE_SECONDS = 2.5
# A kill whose cause is not known is the machine's if System RAM was short at most this long before.
SHORT_SECONDS = 5.0
# Fraction of System RAM in use that is a shortage, and that is one while tasks have to free memory themselves. A
# kill makes room, and a fast program fills a third of the machine between two readings.
SHORT_USED, RECLAIM_USED = 0.80, 0.50


class NewKills(Struct, frozen=True):
    """OOM kills since the previous tick: those named in the kernel log, and the number of other counted ones.

    `ram_was_short`: System RAM was short in the seconds before. The count in /proc/vmstat includes kills at the
    limit of any cgroup, so a kill without a name says nothing about System RAM by itself.
    """

    named: tuple[OomKill, ...] = ()
    unnamed: int = 0
    ram_was_short: bool = False

    @property
    def of_machine(self) -> tuple[OomKill, ...]:
        """Return the named kills for lack of System RAM. The memory of some NUMA nodes is not all of it."""
        wanted = ("machine", "nodes") if self.ram_was_short else ("machine",)
        return tuple(kill for kill in self.named if kill.scope in wanted)

    @property
    def unnamed_of_machine(self) -> int:
        return self.unnamed if self.ram_was_short else 0


NO_KILLS = NewKills()


class RamShortage(Struct, frozen=True):
    """When System RAM was short: monotonic times at which it was `SHORT_USED` or `RECLAIM_USED` full, and at which
    tasks had to free memory themselves. The kernel does not count there what a cgroup at its limit frees.
    """

    full_at: float = float("-inf")
    half_full_at: float = float("-inf")
    reclaimed_at: float = float("-inf")
    kernel: Kernel | None = None

    def with_reading(self, now: float, used_ratio: float | None, kernel: Kernel | None) -> RamShortage:
        """Add a reading. `used_ratio`: fraction of System RAM that is not available."""
        used = 0.0 if used_ratio is None else used_ratio
        return RamShortage(
            now if used >= SHORT_USED else self.full_at,
            now if used >= RECLAIM_USED else self.half_full_at,
            now if _has_reclaimed(self.kernel, kernel) else self.reclaimed_at,
            self.kernel if kernel is None else kernel,
        )

    def was_short(self, now: float) -> bool:
        since = now - SHORT_SECONDS
        return self.full_at >= since or min(self.half_full_at, self.reclaimed_at) >= since


class OomKillCount(Struct, frozen=True):
    """Counted and named kills so far. `owed`: kills that were counted but not named, the first one at `since`."""

    counted: int | Absent = Absent.NOT_AVAILABLE
    number: int | None = None
    owed: int = 0
    since: float = 0.0
    shortage: RamShortage = RamShortage()


def count_new_kills(
    before: OomKillCount, kernel: Kernel | None, log: KernelLog | None, now: float, used_ratio: float | None = None
) -> tuple[OomKillCount, NewKills]:
    """Return the new kills at `now` (monotonic). If the log is read, unnamed kills wait `GRACE_SECONDS` for it.

    `used_ratio`: fraction of System RAM that is not available, None if unknown.
    """
    counted, risen = _read_count(kernel), 0
    if not isinstance(counted, Absent) and not isinstance(before.counted, Absent):
        risen = max(0, counted - before.counted)
    kills = log.kills if log else ()
    latest = kills[-1].number if kills else 0
    known = latest if before.number is None and log else before.number
    named = tuple(kill for kill in kills if known is not None and kill.number > known)
    owed = before.owed + risen - len(named)
    shortage = before.shortage.with_reading(now, used_ratio, kernel)
    found = NewKills(named, ram_was_short=shortage.was_short(now))
    since = before.since if before.owed else now
    if log and owed and now - since < GRACE_SECONDS:
        return OomKillCount(counted, latest, owed, since, shortage), found
    after = OomKillCount(counted, latest if log else before.number, shortage=shortage)
    return after, replace(found, unnamed=max(0, owed))


def _read_count(kernel: Kernel | None) -> int | Absent:
    return Absent.NOT_AVAILABLE if kernel is None else kernel.oom_kills_total


def _has_reclaimed(before: Kernel | None, now: Kernel | None) -> bool:
    """Check that tasks of the machine freed memory between two readings."""
    if before is None or now is None or before is now:
        return False
    pairs = (
        (before.allocstall_total, now.allocstall_total),
        (before.pgscan_direct_total, now.pgscan_direct_total),
    )
    return any(isinstance(old, int) and isinstance(new, int) and new > old for old, new in pairs)
