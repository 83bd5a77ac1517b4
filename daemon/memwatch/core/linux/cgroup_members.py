"""Processes of a control group and of the groups below it, from cgroup2 files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from memwatch.core.linux.cgroup_mounts import list_children

MAX_GROUPS, MAX_MEMBERS = 64, 1000


def find_group(sysfs: Path, place: str) -> Path | None:
    """Return the folder of a group such as /system.slice/a.service. None if it does not exist or is not a path."""
    inside = PurePosixPath(place.lstrip("/"))
    if ".." in inside.parts or "\0" in place:
        return None
    for root in (sysfs / "fs/cgroup", sysfs / "fs/cgroup/unified"):
        if os.path.isfile(root / inside / "cgroup.procs"):
            return root / inside
    return None


class Members(NamedTuple):
    """PIDs of a group and the groups below it. `is_whole`: it has no more groups and processes than were read."""

    pids: frozenset[int] = frozenset()
    is_whole: bool = True


def read_members(group: Path) -> Members:
    """Return the processes of MAX_GROUPS and of MAX_MEMBERS at most."""
    members: set[int] = set()
    groups = 0
    for groups, folder in enumerate(_folders(group), 1):  # noqa: B007
        try:
            members.update(map(int, (folder / "cgroup.procs").read_bytes().split()))
        except (OSError, ValueError):  # removed, or threaded
            continue
        if len(members) >= MAX_MEMBERS:
            break
    return Members(frozenset(members), len(members) < MAX_MEMBERS and groups < MAX_GROUPS)


def read_charged_bytes(group: Path) -> int | None:
    """Return the memory that is charged to a group. None without the memory controller."""
    try:
        return int((group / "memory.current").read_bytes())
    except (OSError, ValueError):
        return None


def _folders(group: Path) -> Iterator[Path]:
    """Yield MAX_GROUPS at most. A user may have made any number below a delegated group."""
    waiting, left = [group], MAX_GROUPS
    while waiting:
        folder = waiting.pop()
        yield folder
        left -= 1
        waiting.extend(path for path, _ in list_children(folder, left - len(waiting)))
