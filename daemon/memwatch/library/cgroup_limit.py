"""Memory limit of this process's cgroup: its container, unit or job."""

from __future__ import annotations

import os
from contextlib import closing
from typing import NamedTuple

from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.model import Absent
from memwatch.library.daemon_client import read_roots


class CgroupLimit(NamedTuple):
    """The smallest limit of the cgroups of this process. `name`: a label such as "container limit".

    `left_bytes`: memory the kernel can still provide before an OOM kill. Page cache does not count as used. GPU
    memory of a unified machine does not either.
    """

    name: str
    size_bytes: int
    left_bytes: int


def own_limit(roots: Roots | None = None) -> CgroupLimit | None:
    """Read the current limit. None without a limit below System RAM or without accounting. Takes about 0.2 ms."""
    from memwatch.core.collectors.cgroup import Collector

    try:
        with closing(Collector(roots or Roots(*read_roots(os.environ)), "cgroup")) as collector:
            (share,) = collector.collect().shares
    except (OSError, SourceUnavailable, ParseError):
        return None
    size, used = share.limit_bytes, share.used_bytes
    if isinstance(size, Absent) or isinstance(used, Absent):
        return None
    return CgroupLimit(share.label.lower(), size, max(0, size - used))
