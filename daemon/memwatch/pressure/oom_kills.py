"""Kills for want of memory that are new: the kernel counts them in one file and names them in another."""

from __future__ import annotations

from msgspec import Struct

from memwatch.kernel_log import KernelLog, OomKill
from memwatch.model import Absent
from memwatch.snapshot import Kernel

# Both files are read once a second, and the kernel counts a kill before it names the victim.
GRACE_SECONDS = 2.5


class NewKills(Struct, frozen=True):
    """Kills since the tick before: those whose victim the log named, and how many others were counted."""

    named: tuple[OomKill, ...] = ()
    unnamed: int = 0


NONE = NewKills()


class Reckoning(Struct, frozen=True):
    """What was counted and named so far. `owed` kills were counted and not named, the first of them at `since`."""

    counted: int | Absent = Absent.NOT_AVAILABLE
    number: int | None = None
    owed: int = 0
    since: float = 0.0


def reckon(
    before: Reckoning, kernel: Kernel | None, log: KernelLog | None, now: float
) -> tuple[Reckoning, NewKills]:
    """What is new at `now` (monotonic). Where the log is read, a kill waits a little to be named by it."""
    counted, risen = _counted(kernel), 0
    if not isinstance(counted, Absent) and not isinstance(before.counted, Absent):
        risen = max(0, counted - before.counted)
    kills = log.kills if log else ()
    latest = kills[-1].number if kills else 0
    known = latest if before.number is None and log else before.number
    named = tuple(kill for kill in kills if known is not None and kill.number > known)
    owed = before.owed + risen - len(named)
    since = before.since if before.owed else now
    if log and owed and now - since < GRACE_SECONDS:
        return Reckoning(counted, latest, owed, since), NewKills(named)
    return Reckoning(counted, latest if log else before.number), NewKills(named, max(0, owed))


def _counted(kernel: Kernel | None) -> int | Absent:
    return Absent.NOT_AVAILABLE if kernel is None else kernel.oom_kills_total
