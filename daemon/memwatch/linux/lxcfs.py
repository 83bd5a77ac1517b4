"""Whether /proc/meminfo tells of a container and not of the machine. Not a collector."""

from __future__ import annotations

from memwatch.linux.cgroups import parse_mountinfo
from memwatch.linux.files import Roots, read_once


def is_of_container(roots: Roots) -> bool:
    """In an LXC container lxcfs is mounted over the file, and what it says are the container's limits."""
    places = ("/proc/meminfo", str(roots.procfs / "meminfo"))
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    return any(mount.point in places and mount.kind.startswith("fuse") for mount in mounts)


# What says System RAM where /proc/meminfo is a container's, and no longer the kernel's own.
LXCFS = "lxcfs:"
