"""Lists of PIDs from drivers: decides in a container if they are its PIDs. Not a collector.

Older versions of NVML, and KFD, list PIDs of the host, some of which exist here too, as other processes. A list is
of this namespace if every PID exists here and its process has a GPU open, as far as its descriptors can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

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
