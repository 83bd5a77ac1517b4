"""Detection of lxcfs, which replaces /proc/meminfo by the container's values. Not a collector."""

from __future__ import annotations

from memwatch.core.linux.cgroups import parse_mountinfo
from memwatch.core.linux.files import Roots, read_once


def is_container_limited(roots: Roots) -> bool:
    """Return True if lxcfs is mounted over /proc/meminfo, as in LXC containers: it shows the container's limits."""
    places = ("/proc/meminfo", str(roots.procfs / "meminfo"))
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    return any(mount.point in places and mount.kind.startswith("fuse") for mount in mounts)


# Prefix of System RAM's source if /proc/meminfo is provided by lxcfs and not by the kernel.
LXCFS = "lxcfs:"
