"""Processes of model servers: found by their command lines, with their workers. Not a collector.

Any user may start processes that look like servers. Those with evidence come first: a listening socket and memory.
Among equals each account gets as many slots as another.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from memwatch.core.budget import KINDS, UNKNOWN, Account, Budget, Rank, share_of, users_part
from memwatch.core.engines.command import Command, may_start_engine
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.listeners import Listener, ListenerTables, read_socket_inodes
from memwatch.core.linux.process_files import (
    STAT_BYTES,
    STATUS_BYTES,
    Stat,
    one_walk,
    parse_real_uid,
    parse_stat,
    parse_uid,
    read_at,
)
from memwatch.core.linux.process_table import NewProcessCheck

if TYPE_CHECKING:
    from memwatch.core.engines.kinds import EngineKind

COMMAND_BYTES = 16384
# On a machine that starts more processes at once, the others are looked at in the next round.
MAX_NEW = 1024
# Servers of one account that are looked at, by those that it may have followed: some without evidence may be first.
LOOKED_AT = 4 / 3
# The interpreter of a server takes more when its libraries are loaded, a context of CUDA 300 MiB.
MIN_HELD_BYTES = 64 << 20
MAX_MEMBERS = 256
# `trtllm-llmapi-launch` has another shell around the server: mpirun or slurmstepd is its third ancestor.
SERVER_DEPTH = 3
# /proc is listed at least this often, once a minute.
LISTED_TURNS = 12
# In this many turns, five minutes, each process that is no server is looked at for another program. More of them in
# a turn wake other threads. On a large machine it takes more turns, as one looks at MAX_AGAIN at most.
AGAIN_TURNS = 30
MAX_AGAIN = 50


def holds_memory(pages: int) -> bool:
    """Return True if these resident pages are more than those of an idle interpreter."""
    return pages * mmap.PAGESIZE >= MIN_HELD_BYTES


class ServerProcess(Struct):
    """The first process of a model server, and those that it started. `inner`: command line of the one of them that
    holds the model, if it is an engine itself.

    `account`: that of the user who started it. `evidence` that it is a server: 0 to 2.
    """

    pid: int
    start_ticks: int
    uid: int | None
    kind: EngineKind
    command: Command
    account: Account = UNKNOWN
    pages: int = 0
    evidence: int = 0
    inner: Command = Command()
    members: dict[int, int] = field(default_factory=dict)  # start ticks by PID
    member_pages: dict[int, int] = field(default_factory=dict)
    uncounted: set[int] = field(default_factory=set)  # processes beyond MAX_MEMBERS

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start_ticks

    @property
    def held_pages(self) -> int:
        """Resident pages of its processes; those that they share count for each."""
        return self.pages + sum(self.member_pages.values())

    @property
    def holds_memory(self) -> bool:
        return holds_memory(self.held_pages)

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid, *sorted(self.members))


class EngineProcesses:
    """Servers that run now. Reads only processes that are new since the last call.

    A process belongs to a server if its parent does. A process that was found before its execve(2) is read again
    once, and later when its name changes or it begins to hold memory: a script that loads a model may end with
    execve, which keeps the PID. No command line is read for that, as it may be swapped out.
    """

    def __init__(self, folder: int, accounts: Accounts, budget: Budget | None = None) -> None:
        """`folder`: descriptor of procfs."""
        self._folder, self._accounts = folder, accounts
        self._budget = budget or Budget(KINDS["engines"])
        self._new = NewProcessCheck(folder)
        self._seen: set[int] = set()
        self._young: set[int] = set()
        self._others: dict[int, tuple[bytes, bool]] = {}  # name, and whether it holds memory, by PID
        self._servers: dict[int, ServerProcess] = {}
        self._server_of: dict[int, ServerProcess] = {}
        self._beyond: set[int] = set()
        self._ranks: dict[int, int] = {}  # generations by PID
        self._turn = 0

    @property
    def not_followed(self) -> int:
        """Return the number of servers that are not looked at. They are counted again once a minute."""
        return len(self._beyond)

    @one_walk()
    def find(self) -> list[ServerProcess]:
        """Return the servers. Their workers are checked only if processes started or once a minute."""
        ended = []
        for server in self._servers.values():
            pages = self._read_pages(server.pid, server.start_ticks)
            server.pages = server.pages if pages is None else pages
            ended += [server] if pages is None else []
        for server in ended:
            self._drop(server)
        if ended or self._turn % LISTED_TURNS == 0:
            self._seen -= self._beyond
        has_changed = self._find_changed()
        if self._new.has_changed() or ended or self._young or has_changed or self._turn % LISTED_TURNS == 0:
            self._drop_ended_members()
            self._scan()
        self._turn += 1
        return list(self._servers.values())

    def _scan(self) -> None:
        self._accounts.refresh()
        present = {int(name) for name in os.listdir(self._folder) if name.isdecimal()}
        self._seen &= present
        self._beyond &= present
        self._ranks = {pid: depth for pid, depth in self._ranks.items() if pid in present}
        for server in self._servers.values():
            server.uncounted &= present
        again = self._young & present
        # Parents before their children, unless the ids have wrapped around: the second look finds those.
        looked = sorted(again | (present - self._seen))[:MAX_NEW]
        self._young = again.difference(looked)
        for pid in looked:
            is_new = pid not in self._seen
            self._seen.add(pid)
            other = self._look_at(pid)
            if other is not None and is_new:
                self._young.add(pid)
            elif other is not None:
                self._others[pid] = _mark(other)
        self._join_ranks()

    def _find_changed(self) -> bool:
        """Forget the processes that run another program now. Return True if there are some."""
        count = min(MAX_AGAIN, math.ceil(len(self._others) / AGAIN_TURNS))
        has_changed = False
        for pid in list(islice(self._others, count)):
            known, stat = self._others.pop(pid), self._read_stat(pid)
            if stat is not None and _mark(stat) == known:
                self._others[pid] = known
            else:
                self._seen.discard(pid)
                has_changed = has_changed or stat is not None
        return has_changed

    def _look_at(self, pid: int) -> Stat | None:
        """Sort a process. Return its state if it may become another program, None if it was sorted."""
        stat = None if pid in self._server_of else self._read_stat(pid)
        if stat is None:  # sorted before, ended, or a kernel thread
            return None
        command = read_command(self._folder, pid)
        kind, parent = find_kind(command), self._server_of.get(stat.parent)
        if parent is not None and (kind is None or kind is not parent.kind or kind.name != "llama.cpp"):
            self._join(stat, parent, command if kind or is_runner(command) else Command())
            return None
        if kind is None:
            return None if self._keep_rank(pid, command) else stat
        status = read_at(self._folder, f"{pid}/status", STATUS_BYTES) or b""
        account = self._accounts.of(parse_real_uid(status))
        if not self._has_room(account, holds_memory(stat.rss_pages)):
            self._beyond.add(pid)
            self._budget.refuse((pid, stat.start_ticks), account)
            return None
        self._beyond.discard(pid)
        server = ServerProcess(pid, stat.start_ticks, parse_uid(status), kind, command, account, stat.rss_pages)
        self._servers[pid] = self._server_of[pid] = server
        return None

    def _keep_rank(self, pid: int, command: Command) -> bool:
        """Return True for a rank that is no child of its server. It may have started before it."""
        if not command.argv:
            return False
        from memwatch.core.engines import tensorrt_llm

        depth = tensorrt_llm.rank_depth(command)
        if depth is None or len(self._ranks) >= MAX_MEMBERS:
            return False
        self._ranks[pid] = depth
        return True

    def _join_ranks(self) -> None:
        """Count ranks to the server that the same program started, if that runs."""
        if not self._ranks:
            return
        started = {
            pid: server
            for server in self._servers.values()
            if server.kind.name == "tensorrt-llm"
            for pid in self._ancestors(server.pid, SERVER_DEPTH)
        }
        for pid, depth in sorted(self._ranks.items()):
            above = list(self._ancestors(pid, depth))
            server = started.get(above[-1]) if len(above) == depth else None
            stat = self._read_stat(pid) if server else None
            if server and stat:
                self._join(stat, server, Command())
                del self._ranks[pid]

    def _ancestors(self, pid: int, depth: int) -> Iterator[int]:
        """Yield the parent, its parent and so on, without the first process of the machine."""
        for _ in range(depth):
            stat = self._read_stat(pid)
            if stat is None or stat.parent <= 1:
                return
            pid = stat.parent
            yield pid

    def _has_room(self, account: Account, holds_memory: bool) -> bool:
        """Return True if a server of this account can be added.

        One that holds memory replaces one without evidence: containers of all users may run as root, one account.
        """
        of_account = [one for one in self._servers.values() if one.account == account]
        if len(of_account) < looked_at(self._budget, account):
            return True
        weak = next((one for one in of_account if not one.evidence and not one.holds_memory), None)
        if not holds_memory or weak is None:
            return False
        self._drop(weak)
        self._beyond.add(weak.pid)
        self._seen.add(weak.pid)
        return True

    def _join(self, stat: Stat, server: ServerProcess, inner: Command) -> None:
        if len(server.members) < MAX_MEMBERS:
            server.members[stat.pid] = stat.start_ticks
            server.member_pages[stat.pid] = stat.rss_pages
            self._server_of[stat.pid] = server
            server.inner = inner if inner.argv else server.inner
        else:
            server.uncounted.add(stat.pid)

    def _drop(self, server: ServerProcess) -> None:
        """Drop a server. Its workers are looked at again: they may have another parent now."""
        del self._servers[server.pid]
        for pid in server.pids:
            self._server_of.pop(pid, None)
            self._seen.discard(pid)

    def _drop_ended_members(self) -> None:
        for server in self._servers.values():
            for pid, started in list(server.members.items()):
                pages = self._read_pages(pid, started)
                if pages is None:
                    del server.members[pid], server.member_pages[pid], self._server_of[pid]
                    self._seen.discard(pid)
                else:
                    server.member_pages[pid] = pages
            server.inner = server.inner if server.members else Command()

    def _read_pages(self, pid: int, started: int) -> int | None:
        """Return the resident pages of a process, None if it has ended, also if its id was reused."""
        stat = self._read_stat(pid)
        return stat.rss_pages if stat is not None and stat.start_ticks == started else None

    def _read_stat(self, pid: int) -> Stat | None:
        """Return the state of a process, None if it has ended."""
        with contextlib.suppress(ParseError):
            return parse_stat(read_at(self._folder, f"{pid}/stat", STAT_BYTES) or b"")
        return None


def _mark(stat: Stat) -> tuple[bytes, bool]:
    """Return what differs if a process runs another program, most of the time."""
    return stat.name, holds_memory(stat.rss_pages)


def looked_at(budget: Budget, account: Account) -> int:
    """Return how many servers of an account are looked at. The setting of all servers bounds those of root, too."""
    return math.ceil(budget.share(account) * LOOKED_AT)


def find_kind(command: Command) -> EngineKind | None:
    """Return the kind of engine that a command line starts. The first one loads the modules of all kinds."""
    if not command.argv:
        return None
    from memwatch.core.engines import kinds

    return kinds.find_kind(command)


def read_command(folder: int, pid: int) -> Command:
    """Return the arguments of a process; none if they may not be read, or if they start no engine."""
    data = read_at(folder, f"{pid}/cmdline", COMMAND_BYTES) or b""
    if not may_start_engine(data):
        return Command()
    return Command(tuple(part.decode("utf-8", "replace") for part in data.rstrip(b"\0").split(b"\0")))


def is_runner(command: Command) -> bool:
    """Return True for a process that holds the model of the server that started it. Like `find_kind`."""
    if not command.argv:
        return False
    from memwatch.core.engines import ollama

    return ollama.is_own_runner(command)


# Where there are too many servers, they are compared again this often.
COMPARED_TURNS = 3
# Descriptors of a server and its processes that are looked at in search of sockets. One takes 2 µs.
MAX_SEARCHED = 4096


class EngineSlots:
    """The servers that are followed."""

    def __init__(self, procfs: Path, budget: Budget | None = None) -> None:
        self._procfs = procfs
        self._budget = budget or Budget(KINDS["engines"])
        self._refused: set[tuple[int, int]] = set()
        self._followed: set[tuple[int, int]] = set()
        self._known: set[tuple[int, int]] = set()
        self._turn = 0

    def choose(self, servers: Sequence[ServerProcess], tables: ListenerTables) -> list[ServerProcess]:
        """Return the servers to follow, in their order. Only if there are too many are they compared."""
        known = {one.key for one in servers}
        self._turn += 1
        if len(servers) <= users_part(self._budget.most):
            self._followed = known
        elif known != self._known or self._turn % COMPARED_TURNS == 0:
            for one in servers:
                one.evidence = one.holds_memory + bool(find_listeners(self._procfs, one, tables))
            self._followed = {one.key for one in share_slots(servers, self._followed, self._budget.most)}
            for one in servers:
                if one.key not in self._followed | self._refused:
                    self._budget.refuse(one.key, one.account)
        self._refused = known - self._followed
        self._known = known
        return [one for one in servers if one.key in self._followed]


def share_slots(
    servers: Iterable[ServerProcess], followed: Iterable[tuple[int, int]], most: int = KINDS["engines"].most
) -> list[ServerProcess]:
    """Return those of root and at most `most` others: those with more evidence first, and of these one of each
    account in turn.

    Within an account those that are followed already come first, then the oldest. A part is kept for services.
    """
    before = set(followed)
    left = sorted(servers, key=lambda one: (-one.evidence, one.key not in before, one.start_ticks, one.pid))
    chosen: list[ServerProcess] = []
    taken: Counter[Account] = Counter()
    ranks: Counter[Rank] = Counter()

    def has_room(account: Account) -> bool:
        if taken[account] >= share_of(KINDS["engines"], most, account):
            return False
        if account.rank is Rank.ROOT:
            return True
        is_for_users = account.rank is Rank.SYSTEM or ranks[Rank.USER] < users_part(most)
        return is_for_users and ranks[Rank.USER] + ranks[Rank.SYSTEM] < most

    while left := [one for one in left if has_room(one.account)]:
        equals = [one for one in left if one.evidence == left[0].evidence]
        one = min(equals, key=lambda one: taken[one.account])
        taken[one.account] += 1
        ranks[one.account.rank] += 1
        chosen.append(one)
        left.remove(one)
    return chosen


def find_listeners(procfs: Path, server: ServerProcess, tables: ListenerTables) -> list[Listener]:
    """Return the sockets of a server, or of the processes that it started if it has none.

    If the server has none at the port that its command line names, those of its processes at that port come first:
    the HTTP server of Xinference is a separate process. Without access to their descriptors: those of its user at
    the port of its command line.
    """
    rows = tables.read(procfs / str(server.pid) / "net")
    if not rows:
        return []
    left, hidden, named = MAX_SEARCHED, False, server.kind.named_port(server.command)
    started: set[int] = set()
    own: list[Listener] = []
    for pid in server.pids:
        inodes = read_socket_inodes(procfs / str(pid), left)
        hidden = hidden or inodes is None
        held, looked_at = inodes or (frozenset[int](), 0)
        left -= looked_at
        started |= held
        if pid == server.pid:
            own = [row for inode, row in rows.items() if inode in held]
            if own and (named is None or any(row.port == named for row in own)):
                return own
        if left <= 0:
            break
    held_rows = [row for inode, row in rows.items() if inode in started]
    if found := [row for row in held_rows if row.port == named] or own or held_rows:
        return found
    ports = {server.kind.port, *(server.command.number(name) for name in server.kind.port_options)}
    return [row for row in rows.values() if row.port in ports and row.uid == server.uid] if hidden else []
