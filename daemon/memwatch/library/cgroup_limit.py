"""Memory limit of this process's cgroup: its container, unit or job."""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple

from memwatch.library.daemon_client import roots_of
from memwatch.linux.files import Roots, Unavailable, Unreadable
from memwatch.model import Absent


class Limit(NamedTuple):
    """The smallest limit of the cgroups of this process. `name`: a label such as "container limit".

    `left_bytes`: memory the kernel can still provide before an OOM kill. Page cache does not count as used. GPU
    memory of a unified machine does not either.
    """

    name: str
    size_bytes: int
    left_bytes: int


def own_limit(roots: Roots | None = None) -> Limit | None:
    """Read the current limit. None without a limit below System RAM or without accounting. Takes about 0.2 ms."""
    from memwatch.collectors.cgroup import Collector

    try:
        with closing(Collector(roots or Roots(*roots_of(os.environ)), "cgroup")) as collector:
            (share,) = collector.collect().shares
    except (OSError, Unavailable, Unreadable):
        return None
    size, used = share.limit_bytes, share.used_bytes
    if isinstance(size, Absent) or isinstance(used, Absent):
        return None
    return Limit(share.label.lower(), size, max(0, size - used))
