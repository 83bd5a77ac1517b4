"""Processes that are hidden from memwatchd, and lists of PIDs from drivers that are of another namespace.

Not a collector.

Older versions of NVML, and KFD, list PIDs of the host, some of which exist here too, as other processes. A list is
of this namespace if every PID exists here and its process has a GPU open, as far as its descriptors can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from msgspec import Struct

from memwatch.core.linux.cgroups import Mount, parse_mountinfo, sees_all_processes
from memwatch.core.linux.files import Roots, read_once
from memwatch.core.linux.process_files import open_folder

# Device files of GPUs. All that use one keep a descriptor: CUDA, ROCm, OpenGL.
_DEVICES = re.compile(r"(?:^|/)dev/(?:nvidia|nvgpu|nvhost|nvmap|dxg|kfd|dri/)")
# Reading a descriptor's link takes 3 µs.
MAX_DESCRIPTORS = 4096

HoldsGpu = Callable[[int], "bool | None"]


def holds_gpu(procfs: int, pid: int) -> bool | None:
    """Check if a process under the open folder `procfs` has a GPU open. None if that cannot be read."""
    try:
        with open_folder(procfs, f"{pid}/fd") as folder:
            names = os.listdir(folder)
            for name in names[:MAX_DESCRIPTORS]:
                with suppress(FileNotFoundError):
                    if _DEVICES.search(os.readlink(name, dir_fd=folder)):
                        return True
    except OSError:
        return None
    # None are listed of a process whose first thread has ended.
    return None if not names or len(names) > MAX_DESCRIPTORS else False


class PidLists:
    """Judges the lists of drivers at each scan of the processes.

    A process that was found with a GPU open and is missing later has ended. It says nothing about the list. A list
    in doubt is foreign if the next scan finds the same; until then, verified processes keep their memory.
    """

    def __init__(self) -> None:
        self._verified: dict[int, int] = {}
        self._without: frozenset[int] = frozenset()

    @property
    def are_unconfirmed(self) -> bool:
        """Check if a scan soon is needed, because a process without an open GPU is listed."""
        return bool(self._without)

    def judge(
        self,
        lists: Mapping[str, frozenset[int]],
        starts: Mapping[int, int],
        missing: Collection[int],
        confirmed: frozenset[int],
        holds: HoldsGpu,
    ) -> frozenset[int]:
        """Return the listed PIDs that are not visible here.

        `starts`: of the visible processes with a listed PID; `missing`: those that /proc does not have in this
        scan, `confirmed` ones also before.
        """
        listed = frozenset().union(*lists.values())
        self._verified = {pid: start for pid, start in self._verified.items() if pid in listed}
        states = {
            pid: True if self._verified.get(pid) == start else holds(pid)
            for pid, start in starts.items()
            if pid in listed
        }
        without = frozenset(pid for pid, state in states.items() if state is False)
        gone = listed.intersection(missing) - self._verified.keys()
        foreign = (without & self._without) | (confirmed & gone)
        found = confirmed | without
        for pids in lists.values():
            if pids & foreign:
                found |= pids
            elif pids & (without | gone):  # in doubt: only processes that an earlier scan has verified
                found |= {pid for pid in pids & starts.keys() if self._verified.get(pid) != starts[pid]}
            else:
                self._verified |= {pid: starts[pid] for pid in pids if states.get(pid)}
        self._without = without
        return found


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
