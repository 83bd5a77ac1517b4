"""Detection of processes whose parent has ended. Not a collector."""

from __future__ import annotations

import re
from collections.abc import Callable

from memwatch.core.linux.process_files import ProcessOwners, Stat
from memwatch.core.owners import plain_name

# The kernel gives a child whose parent ended to the nearest subreaper among its ancestors, else to process 1. A
# subreaper that is not process 1 is the manager of a user's services, named `systemd` as well.
INIT = 1
MANAGERS = frozenset({b"systemd", b"init", b"upstart"})
# Worker processes of inference engines name themselves so (setproctitle). They never run on their own.
WORKERS = re.compile(rb"VLLM::|sglang::|ray::")
# Services that start programs for others, which stay in their cgroup.
LAUNCHERS = re.compile(r"(sshd?|crond?|atd|user)(@[^/]*)?\.service")

NameOf = Callable[[int], bytes | None]


def has_lost_parent(stat: Stat, home: ProcessOwners, in_namespace: bool, name_of: NameOf) -> bool:
    """Check if a process was left behind by its parent. `name_of` reads the name of a process.

    A service and a container are supervised, so that no process in one counts. Neither does a leader of its process
    group, unless it is known as a worker: it was started to run alone, by nohup or setsid. Most that count lie in
    the scope of a login session, which systemd keeps until its last process ends, so the unit says nothing.
    `in_namespace`: process 1 is not the machine's, but that of a container, and may be anyone's parent.
    """
    works = WORKERS.match(stat.name) is not None
    if in_namespace or stat.pid == INIT or (stat.group == stat.pid and not works):
        return False
    if not _is_unsupervised(home, works):
        return False
    return stat.parent == INIT or (name_of(stat.parent) in MANAGERS and stat.parent > INIT)


def _is_unsupervised(home: ProcessOwners, works: bool) -> bool:
    if home.names is None or home.names.container or home.names.pod or home.names.job:
        return False
    unit = home.names.unit and plain_name(home.names.unit)
    if unit is None or unit.endswith(".slice"):
        return works
    return unit.endswith(".scope") or LAUNCHERS.fullmatch(unit) is not None
