"""Bounds of each process's part of a memory, if its clients may hold the same buffers. Pure functions.

A client of a driver counts a shared buffer in full. Two clients of one process that share 3 GiB may hold them once.
The process holds at least every client's own part, and the largest shared part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core.model import Absent, Bytes


class ClientPart(NamedTuple):
    """Bytes of one client in one place. `shared_bytes` of them may be held by other clients too.

    A client that several processes have open counts for each of them.
    """

    pids: tuple[int, ...]
    size_bytes: int
    shared_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        return max(0, self.size_bytes - self.shared_bytes)


class ClientTotals(Struct, frozen=True):
    """Memory of clients in one place: the total, and by process id at least and, where that is more, at most.

    `unread_pids`: processes of which the size of a client cannot be read. The total and their figures lack it.
    """

    total: int
    by_pid: Mapping[int, int]
    most_by_pid: Mapping[int, int] = field(default_factory=dict)
    unread_pids: tuple[int, ...] = ()

    @property
    def is_partial(self) -> bool:
        return bool(self.unread_pids)


def sum_parts(parts: Iterable[ClientPart], used: Bytes) -> ClientTotals:
    """Sum the clients by process. `used`: the use of the whole place, which bounds every part of it."""
    parts = [part for part in parts if part.size_bytes]
    by_pid: dict[int, list[ClientPart]] = {}
    groups: dict[tuple[int, ...], list[ClientPart]] = {}
    for part in parts:
        groups.setdefault(part.pids, []).append(part)
        for pid in part.pids:
            by_pid.setdefault(pid, []).append(part)
    all_own = sum(part.own_bytes for part in parts)
    least, most = {}, {}
    for pid, mine in by_pid.items():
        others = all_own - sum(part.own_bytes for part in mine)
        least[pid], high = bound(mine, used if isinstance(used, Absent) else used - others)
        if high > least[pid]:
            most[pid] = high
    return ClientTotals(sum(bound(mine, Absent.NOT_SUPPORTED)[0] for mine in groups.values()), least, most)


def bound(parts: Sequence[ClientPart], left: Bytes) -> tuple[int, int]:
    """Return what a process holds at least and at most. `left`: the use, less what only others hold.

    At least: the largest client. Its whole size is certain, even if the readings of others are older.
    """
    least = sum(part.own_bytes for part in parts) + max(min(part.size_bytes, part.shared_bytes) for part in parts)
    most = sum(part.size_bytes for part in parts)
    if isinstance(left, int):
        least = max(min(least, left), *(part.size_bytes for part in parts), 0)
        most = max(least, min(most, left))
    return least, most
