"""New OOM kills: the kernel counts them in /proc/vmstat and names the victims in its log."""

from __future__ import annotations

from msgspec import Struct

from memwatch.kernel_log import KernelLog, OomKill
from memwatch.model import Absent
from memwatch.snapshot import Kernel

# Both are read once a second, and the kernel counts a kill before it logs the victim.
GRACE_SECONDS = 2.5


class NewKills(Struct, frozen=True):
    """OOM kills since the previous tick: those named in the kernel log, and the number of other counted ones."""

    named: tuple[OomKill, ...] = ()
    unnamed: int = 0


NO_KILLS = NewKills()


class OomKillCount(Struct, frozen=True):
    """Counted and named kills so far. `owed`: kills that were counted but not named, the first one at `since`."""

    counted: int | Absent = Absent.NOT_AVAILABLE
    number: int | None = None
    owed: int = 0
    since: float = 0.0


def count_new_kills(
    before: OomKillCount, kernel: Kernel | None, log: KernelLog | None, now: float
) -> tuple[OomKillCount, NewKills]:
    """Return the new kills at `now` (monotonic). If the log is read, unnamed kills wait `GRACE_SECONDS` for it."""
    counted, risen = _read_count(kernel), 0
    if not isinstance(counted, Absent) and not isinstance(before.counted, Absent):
        risen = max(0, counted - before.counted)
    kills = log.kills if log else ()
    latest = kills[-1].number if kills else 0
    known = latest if before.number is None and log else before.number
    named = tuple(kill for kill in kills if known is not None and kill.number > known)
    owed = before.owed + risen - len(named)
    since = before.since if before.owed else now
    if log and owed and now - since < GRACE_SECONDS:
        return OomKillCount(counted, latest, owed, since), NewKills(named)
    return OomKillCount(counted, latest if log else before.number), NewKills(named, max(0, owed))


def _read_count(kernel: Kernel | None) -> int | Absent:
    return Absent.NOT_AVAILABLE if kernel is None else kernel.oom_kills_total
