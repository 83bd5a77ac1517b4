"""CPUs that this process may use: by its affinity and by the quota of its cgroup."""

from __future__ import annotations

import math
import os
from pathlib import Path

from memwatch.core.linux.cgroups import parse_cgroup
from memwatch.core.linux.files import read_once

CGROUPS = Path("/sys/fs/cgroup")
PROC_SELF = Path("/proc/self")
BOOT_ID = "sys/kernel/random/boot_id"


def count_usable_cpus(proc_self: Path = PROC_SELF, cgroups: Path = CGROUPS) -> int:
    """Return the number of CPUs, at least 1. A container's or unit's quota counts, rounded up."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min([cpus, *_list_quotas(proc_self, cgroups)]))


def _list_quotas(proc_self: Path, cgroups: Path) -> list[int]:
    """Return the quotas of this process's cgroup and those above it, in version 2."""
    path = parse_cgroup(read_once(proc_self / "cgroup") or b"").get("", "/")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folders = [cgroups.joinpath(*parts[:count]) for count in range(len(parts) + 1)]
    texts = [read_once(folder / "cpu.max") or b"" for folder in folders]
    return [quota for text in texts if (quota := parse_cpu_max(text)) is not None]


def parse_cpu_max(text: bytes) -> int | None:
    """Parse "150000 100000" to 2 CPUs. None without a quota ("max 100000") or for other text."""
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() and len(word) < 16 for word in words) or not int(words[1]):
        return None
    return max(1, math.ceil(int(words[0]) / int(words[1])))


def read_boot_id(procfs: Path) -> str:
    """Return the id of the machine's current boot, empty if it is not readable."""
    return (read_once(procfs / BOOT_ID) or b"").decode("ascii", "replace").strip()


def is_this_machine(boot_id: object) -> bool:
    """Return True if a snapshot is of the machine on which this process runs: a boot has its own id."""
    own = read_boot_id(PROC_SELF.parent)
    return bool(own) and own == boot_id
