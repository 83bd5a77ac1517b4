"""The limit that this program lives under: its container's, its unit's or its job's."""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple

from memwatch.library.daemon_client import roots_of
from memwatch.linux.files import Roots, Unavailable, Unreadable
from memwatch.model import Absent


class Limit(NamedTuple):
    """The smallest of the cgroups that this process is in. `name`: whose it is, such as "container limit".

    What is left is what the kernel would give before it kills: page cache is not counted as used. GPU memory of a
    unified machine is not counted either.
    """

    name: str
    size_bytes: int
    left_bytes: int


def own_limit(roots: Roots | None = None) -> Limit | None:
    """As it is now; None where there is none below System RAM, or nobody counts. Some 0.2 ms."""
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
