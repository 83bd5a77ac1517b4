"""Processes that are hidden from memwatchd: outside a PID namespace, or by the mount options of /proc.

Not a collector.
"""

from __future__ import annotations

import re

from msgspec import Struct

from memwatch.core.linux.cgroups import Mount, parse_mountinfo, sees_all_processes
from memwatch.core.linux.files import Roots, read_once

OUTSIDE_HIDDEN = (
    "Processes outside this container and their memory are not visible: start it with the host's PID namespace "
    "(docker run --pid=host) to see them."
)
# Names since Linux 5.8, numbers before (fs/proc/root.c). `noaccess` lists the processes, but their files cannot be
# read. systemd's ProtectProc= mounts /proc with the same options.
_MODES = {"1": "noaccess", "2": "invisible", "4": "ptraceable"}
_HIDEPID = re.compile(r"(?:^|,)hidepid=(\w{1,20})")
_GID = re.compile(r"(?:^|,)gid=(\d{1,10})(?:,|$)")
_PTRACE = "CAP_SYS_PTRACE (systemd: drop-in processes-in-full.conf)"


class HidePid(Struct, frozen=True):
    """The mount option hidepid of a procfs. Members of group `gid` see all processes, unless it is `ptraceable`."""

    mode: str
    gid: int = 0

    @property
    def note(self) -> str:
        """Return a sentence: what is hidden: why; what to do."""
        return (
            "Processes of other users are hidden, and their memory has no known holder: /proc is mounted with "
            f"hidepid={self.mode}; run memwatchd {self._remedy}, or without ProtectProc= if its unit sets that."
        )

    @property
    def _remedy(self) -> str:
        if self.mode == "ptraceable" or not self.gid:
            return f"with {_PTRACE}"
        return f"in group {self.gid}, named by gid= (systemd: SupplementaryGroups={self.gid}), with {_PTRACE}"


def describe_hidden(roots: Roots, contained: bool) -> str | None:
    """Return a sentence that explains why some processes are hidden, or None if all are visible."""
    if not sees_all_processes(read_once(roots.procfs / "2/stat"), contained):
        return OUTSIDE_HIDDEN
    found = find_hidepid(read_once(roots.procfs / "self/mountinfo") or b"", str(roots.procfs))
    # Process 1 belongs to root: a daemon that can read it sees the others as well.
    return found.note if found and read_once(roots.procfs / "1/stat") is None else None


def find_hidepid(mountinfo: bytes, procfs: str) -> HidePid | None:
    """Return the option of the procfs at the path `procfs`, else of /proc. None if it hides nothing.

    Of several mounts at one point the last counts: it covers the others.
    """
    mounts = [mount for mount in parse_mountinfo(mountinfo) if mount.kind == "proc"]
    here = [mount for point in ("/proc", procfs) for mount in mounts if mount.point == point]
    return _parse_options(here[-1]) if here else None


def _parse_options(mount: Mount) -> HidePid | None:
    hidden, group = _HIDEPID.search(mount.options), _GID.search(mount.options)
    if hidden is None or hidden[1] in ("0", "off"):
        return None
    return HidePid(_MODES.get(hidden[1], hidden[1]), int(group[1]) if group else 0)
