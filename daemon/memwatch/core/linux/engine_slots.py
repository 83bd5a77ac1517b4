"""Slots of model servers: which of them are followed where there are more than can be. Not a collector.

Any user may start processes that look like servers. Those with evidence come first: a listening socket and memory.
Among equals each account gets as many slots as another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from memwatch.core.linux.engine_processes import ServerProcess
from memwatch.core.linux.listeners import Listener, ListenerTables, read_socket_inodes

MAX_ENGINES = 16
# Where there are too many servers, they are compared again this often.
COMPARED_TURNS = 3
# Descriptors of a server and its processes that are looked at in search of sockets. One takes 2 µs.
MAX_SEARCHED = 4096


class EngineSlots:
    """The servers that are followed."""

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._followed: set[tuple[int, int]] = set()
        self._known: set[tuple[int, int]] = set()
        self._turn = 0

    def choose(self, servers: Sequence[ServerProcess], tables: ListenerTables) -> list[ServerProcess]:
        """Return the servers to follow, in their order. Only if there are too many are they compared."""
        known = {one.key for one in servers}
        self._turn += 1
        if len(servers) <= MAX_ENGINES:
            self._followed = known
        elif known != self._known or self._turn % COMPARED_TURNS == 0:
            for one in servers:
                one.evidence = one.holds_memory + bool(find_listeners(self._procfs, one, tables))
            self._followed = {one.key for one in share_slots(servers, self._followed)}
        self._known = known
        return [one for one in servers if one.key in self._followed]


def share_slots(
    servers: Iterable[ServerProcess], followed: Iterable[tuple[int, int]], most: int = MAX_ENGINES
) -> list[ServerProcess]:
    """Return at most `most` servers: those with more evidence first, and of these one of each account in turn.

    Within an account those that are followed already come first, then the oldest.
    """
    before = set(followed)
    left = sorted(servers, key=lambda one: (-one.evidence, one.key not in before, one.start_ticks, one.pid))
    chosen: list[ServerProcess] = []
    taken: Counter[int | None] = Counter()
    while left and len(chosen) < most:
        equals = [one for one in left if one.evidence == left[0].evidence]
        one = min(equals, key=lambda one: taken[one.account])
        taken[one.account] += 1
        chosen.append(one)
        left.remove(one)
    return chosen


def find_listeners(procfs: Path, server: ServerProcess, tables: ListenerTables) -> list[Listener]:
    """Return the sockets of a server, or of the processes that it started if it has none.

    Without access to their descriptors: those of its user at the port of its command line.
    """
    rows = tables.read(procfs / str(server.pid) / "net")
    if not rows:
        return []
    left, hidden = MAX_SEARCHED, False
    started: set[int] = set()
    for pid in server.pids:
        inodes = read_socket_inodes(procfs / str(pid), left)
        hidden = hidden or inodes is None
        held, looked_at = inodes or (frozenset[int](), 0)
        left -= looked_at
        started |= held
        if pid == server.pid and (found := [row for inode, row in rows.items() if inode in held]):
            return found
        if left <= 0:
            break
    if found := [row for inode, row in rows.items() if inode in started]:
        return found
    ports = {server.kind.port, *(server.command.number(name) for name in server.kind.port_options)}
    return [row for row in rows.values() if row.port in ports and row.uid == server.uid] if hidden else []
