"""OOM kills that the kernel log names, at the limit of the cgroup of memwatchd, which is a target by itself.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from msgspec import Struct

from memwatch.core.kernel_log import OomKill
from memwatch.core.linux.cgroup_kills import HIDDEN_PATHS

# A kill is counted at most this long before the log names it.
CLAIM_SECONDS = 2.5


class OwnKills(Struct, frozen=True):
    """Kills counted at the limit of the own cgroup so far. `left`: those that no named kill is of, since `at`."""

    total: int | None = None
    left: int = 0
    at: float = 0.0


def claim_own_kills(
    before: OwnKills, total: int | None, named: Iterable[OomKill], path: str, now: float, is_owed: bool
) -> tuple[OwnKills, tuple[OomKill, ...]]:
    """Return the new kills that are of the own cgroup, whose `path` is that of its namespace.

    `is_owed`: a kill that the machine counted waits for its name, so that its own count is kept as well.
    If the path is hidden, the counter decides. It cannot tell kills in several groups apart: none is then its own.
    """
    limited = tuple(kill for kill in named if kill.scope == "cgroup")
    risen = max(0, total - before.total) if total is not None and before.total is not None else 0
    left = risen + (before.left if is_owed or now - before.at < CLAIM_SECONDS else 0)
    if path not in HIDDEN_PATHS:
        own = tuple(kill for kill in limited if is_around(kill.cgroup, path))
    else:
        own = limited[:left] if len({kill.cgroup for kill in limited}) == 1 else ()
    left = max(0, left - len(own))
    return OwnKills(total, left, now if risen else before.at), own


def is_around(cgroup: str, path: str) -> bool:
    """Return True for the cgroup in `path`, and for one around it."""
    return cgroup not in HIDDEN_PATHS and PurePosixPath(path).is_relative_to(cgroup)
