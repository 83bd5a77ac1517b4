"""OOM kills at the limits of cgroups, from counters that every user may read. Not a collector.

Version 2 counts `oom` where a limit was reached and nothing could be freed, and `oom_kill` where the victim was,
also if the machine ran out of memory. `memory.events` includes all groups below, `memory.events.local` (Linux 5.3)
does not. Version 1 has `oom_kill` in `memory.oom_control` (4.13) and `memory.failcnt`, both without groups below.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core import units
from memwatch.core.kernel_log import shorten_cgroup
from memwatch.core.linux.cgroup_mounts import V2, CgroupVersion, list_children, parse_figure
from memwatch.core.linux.files import ParseError, read_once

# The path of the own cgroup in a cgroup namespace, which hides the path that the log has; without a path.
HIDDEN_PATHS = ("", "/")
NOT_RAM = "System RAM was not involved"
# Groups that one scan reads, and levels below the mount point.
MAX_GROUPS, MAX_DEPTH = 2000, 32
# Groups that are named of one scan, and records that are kept: every tick takes the new ones.
MAX_NAMED, MAX_KILLS = 16, 64
# The kernel logs a table of all tasks between the two counts, which takes seconds on a serial console.
HIT_SECONDS = 10.0

LOCAL_EVENTS = "memory.events.local"
_COUNTS = re.compile(rb"^(oom|oom_kill) (\d{1,20})$", re.MULTILINE)


class Counts(NamedTuple):
    """Times that the limit was reached and nothing could be freed, and kills of processes."""

    hits: int = 0
    kills: int = 0

    def since(self, before: Counts) -> Counts:
        """Return the rise. A counter that falls says nothing."""
        return Counts(max(0, self.hits - before.hits), max(0, self.kills - before.kills))


class CgroupKill(Struct, frozen=True):
    """Kills at the limit of a cgroup. `number`: kills since memwatchd started, including these.

    `cgroup`: its path, or with `is_inside` that of a group around it; empty for further groups of the same scan.
    `limit_bytes` is None if it is not known. `is_own`: memwatchd is in it.
    """

    number: int
    count: int
    cgroup: str
    limit_bytes: int | None = None
    is_inside: bool = False
    is_own: bool = False

    @property
    def text(self) -> str:
        """Return a sentence: "docker-1f6b2c3d4e5f.scope reached its limit of 32.0 MiB; …"."""
        if not self.cgroup and not self.is_own:
            return f"Other cgroups reached their limits; the kernel killed {self.victims} in them; {NOT_RAM}"
        limit = "" if self.limit_bytes is None else f" of {units.size(self.limit_bytes)}"
        name = shorten_cgroup(self.cgroup) if self.cgroup not in HIDDEN_PATHS else "The cgroup of memwatchd"
        who = f"a cgroup in {name}" if self.is_inside else name
        text = f"{who} reached its limit{limit}; the kernel killed {self.victims} in it; {NOT_RAM}"
        return text if who == name and self.cgroup != "/" else text[0].upper() + text[1:]

    @property
    def victims(self) -> str:
        return "a process" if self.count == 1 else f"{self.count} processes"


class CgroupKills(Struct, frozen=True):
    """State after a scan. `counted`: OOM kills of the whole machine by then; `number`: those at limits of cgroups,
    since memwatchd started; `kills`: the latest. `is_whole`: no group was left out. `own`: path of the own cgroup.
    """

    counted: int = 0
    number: int = 0
    kills: tuple[CgroupKill, ...] = ()
    is_whole: bool = True
    own: str = ""


class Node(Struct):
    """A group as it was read last. `total` includes the groups below in version 2.

    `is_whole`: a group that is missing in `children` did not exist, or had counted nothing.
    """

    inode: int = 0
    total: Counts = Counts()
    own: Counts = Counts()
    hit_at: float = float("-inf")
    children: dict[str, Node] = field(default_factory=dict)
    is_whole: bool = True


class Rise(NamedTuple):
    """Kills at the limit of the group in `folder`, or of one in it that is gone or was left out (`is_inside`)."""

    folder: Path
    kills: int
    is_inside: bool = False


class Change(NamedTuple):
    """A group whose counters changed. If the state before is not known, the rise is 0."""

    node: Node
    folder: Path
    rise: Counts
    is_known: bool


class KillTree:
    """The counters of all groups below `folder`. Each scan returns the rises since the one before."""

    def __init__(self, version: CgroupVersion, folder: Path, has_local_events: bool = False) -> None:
        """`has_local_events`: version 2 is mounted with `memory_localevents`: no count includes groups below."""
        self.is_whole: bool = True
        self._read = counts_reader(version)
        self._folder = folder
        self._is_nested = version is V2 and not has_local_events and counts_groups_below(folder)
        self._root: Node | None = None
        self._left = 0
        self._now = 0.0

    def scan(self, now: float) -> list[Rise]:
        """Read the groups whose counters may have changed, at the monotonic time `now`."""
        self._left, self._now, self.is_whole = MAX_GROUPS, now, True
        is_known, root = self._root is not None, self._root or Node()
        counts = self._read(self._folder) or Counts()  # the real root of version 2 has none
        rise = counts.since(root.total) if is_known else Counts()
        root.total, self._root = counts, root
        return list(self._enter(Change(root, self._folder, rise, is_known), None, 0))

    def _enter(self, change: Change, limit: Path | None, depth: int) -> Iterator[Rise]:
        """Yield the rises of a group and of those in it. `limit`: the innermost group around it at its limit."""
        node, folder, rise, _ = change
        own = self._own_rise(change)
        if own.hits:
            node.hit_at = self._now
        if self._now - node.hit_at <= HIT_SECONDS:
            limit = folder
        if own.kills and limit is not None:
            yield Rise(limit, own.kills)
        hits, kills = rise.hits - own.hits, rise.kills - own.kills
        for child in self._changed(change, depth):
            hits, kills = hits - child.rise.hits, kills - child.rise.kills
            yield from self._enter(child, limit, depth + 1)
        if self._is_nested and kills > 0 and (limit is not None or hits > 0):
            yield Rise(limit or folder, kills, is_inside=limit is None)

    def _own_rise(self, change: Change) -> Counts:
        """Return the rise without groups below."""
        if not self._is_nested:
            return change.rise
        node, none = change.node, Counts()
        own = none if node.total == none else read_v2(change.folder, LOCAL_EVENTS)
        if own is None:  # removed since
            return none
        before, node.own = node.own, own
        return own.since(before) if change.is_known else none

    def _changed(self, change: Change, depth: int) -> Iterator[Change]:
        """Yield the groups inside whose counters changed."""
        node, seen, was_whole = change.node, dict[str, Node](), change.node.is_whole
        children = list_children(change.folder, self._left + 1) if depth < MAX_DEPTH else []
        node.is_whole = depth < MAX_DEPTH
        for path, inode in children:
            if self._left <= 0:
                node.is_whole = False
                break
            self._left -= 1
            counts, child = self._read(path), node.children.get(path.name)
            if counts is None:
                continue
            is_known = change.is_known and (was_whole or child is not None)
            if child is None or child.inode != inode:
                child = Node(inode)
            seen[path.name] = child
            is_same, rise = counts == child.total, counts.since(child.total)
            child.total = counts
            if not (self._is_nested and is_same):
                yield Change(child, path, rise if is_known else Counts(), is_known)
        node.children = seen
        self.is_whole &= node.is_whole


def counts_reader(version: CgroupVersion) -> Callable[[Path], Counts | None]:
    return read_v2 if version is V2 else read_v1


def counts_groups_below(folder: Path) -> bool:
    """Return True if `memory.events` includes the groups below, as it has since Linux 5.2."""
    return any(
        os.path.exists(path / LOCAL_EVENTS) for path in (folder, *(path for path, _ in list_children(folder, 9)))
    )


def read_v1(folder: Path) -> Counts | None:
    """Return the counts of a group; None if it was removed, or if Linux is older than 4.13."""
    failures, control = read_once(folder / "memory.failcnt"), read_once(folder / "memory.oom_control")
    found = dict(_COUNTS.findall(control or b""))
    try:
        hits = parse_figure(failures or b"")
    except ParseError:
        return None
    return Counts(hits, int(found[b"oom_kill"])) if b"oom_kill" in found else None


def read_v2(folder: Path, name: str = V2.events) -> Counts | None:
    """Return the counts of a group; None if it was removed, or does not account memory."""
    found = dict(_COUNTS.findall(read_once(folder / name) or b""))
    return Counts(int(found[b"oom"]), int(found[b"oom_kill"])) if len(found) == 2 else None


class LimitKills:
    """Counter of the OOM kills at the limit of a group. `oom_kill` includes those of the machine in it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._seen: int | None = None
        self._before = Counts()
        self._total = 0

    def count(self, folder: Path, oom_kills: int | None, version: CgroupVersion) -> int | None:
        """Return the kills since the start, None if they are not counted. Reads only after a kill."""
        if oom_kills is None:
            return None
        is_new, self._folder = folder != self._folder, folder
        if is_new or oom_kills != self._seen:
            counts = counts_reader(version)(folder)
            if counts is None:
                return self._total
            rise, self._before, self._seen = counts.since(self._before), counts, oom_kills
            self._total += rise.kills if rise.hits and not is_new else 0
        return self._total
