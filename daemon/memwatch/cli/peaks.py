"""Peak memory of a program and its children: the sizes of the tree in each sample, and the peaks of its cgroup."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.library.host import MAXRSS_UNIT, Ram

RAM_LABEL = "System RAM"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_PROCESSES = 10_000
MAX_PIDS = 100_000


def read_tree(pid: int, procfs: Path = Path("/proc")) -> dict[int, int]:
    """Return RSS in bytes by process id, for a process and its descendants. Ended processes are skipped."""
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting and len(found) < MAX_PROCESSES:
        one = waiting.pop()
        resident = _resident(procfs / str(one))
        if resident is not None and one not in found:
            found[one] = resident
            waiting += _children(procfs / str(one))
    return found


def _resident(folder: Path) -> int | None:
    try:
        return int((folder / "statm").read_bytes().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def _children(folder: Path) -> list[int]:
    """Return the children of all threads, since any thread may have forked."""
    found: list[int] = []
    try:
        for thread in (folder / "task").iterdir():
            found += [int(word) for word in (thread / "children").read_bytes().split()]
    except (OSError, ValueError):
        return found
    return found


def read_children_peak() -> int | None:
    """Return the peak RSS of the largest of the ended children and their children, as the kernel counted it.

    A child also inherits the peak of this process when it starts. None if its own is not above that.
    """
    own, largest = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return largest * MAXRSS_UNIT if largest > own else None


class Peaks(Struct):
    """Peaks of a running program. RSS is the sum over its processes; shared pages count once per process.

    `process_rss_bytes` and `cgroup_bytes` are counted by the kernel, the others are the greatest of the samples.
    `is_partial`: it had more processes than are followed, and the samples are lower bounds.
    """

    rss_bytes: int | None = None
    process_rss_bytes: int | None = None
    cgroup_bytes: int | None = None
    used_bytes: dict[str, int] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    began_unix: float = field(default_factory=time.time)
    is_simulated: bool = False
    is_partial: bool = False

    def see_tree(self, tree: Mapping[int, int]) -> None:
        if tree:
            self.rss_bytes = max(self.rss_bytes or 0, sum(tree.values()))
        self.is_partial |= len(tree) >= MAX_PROCESSES or len(self.pids) >= MAX_PIDS
        if len(self.pids) < MAX_PIDS:
            self.pids.update(tree)

    def see_counters(self, process_rss_bytes: int | None, cgroup_bytes: int | None) -> None:
        self.process_rss_bytes, self.cgroup_bytes = process_rss_bytes, cgroup_bytes
        if process_rss_bytes is not None:
            self.rss_bytes = max(self.rss_bytes or 0, process_rss_bytes)

    def see_ram(self, ram: Ram | Absent) -> None:
        if not isinstance(ram, Absent) and not self.used_bytes.keys() - {RAM_LABEL}:
            _raise(self.used_bytes, RAM_LABEL, ram.total_bytes - ram.available_bytes)

    def see_snapshot(self, snapshot: Snapshot) -> None:
        """Update from a snapshot: use of pools and shares by all programs, device memory of this process tree."""
        self.is_simulated |= snapshot.simulated
        for place in snapshot.places:
            if isinstance(place.used_bytes, int):
                _raise(self.used_bytes, place.label, place.used_bytes)
        in_use: dict[str, int] = {}
        for process in snapshot.processes:
            if process.pid in self.pids:
                for held_in, count in process.device_bytes.items():
                    if isinstance(count, int):
                        label = snapshot.labels.get(held_in, held_in)
                        in_use[label] = in_use.get(label, 0) + count
        for label, count in in_use.items():
            _raise(self.device_bytes, label, count)

    def json(self) -> dict[str, Any]:
        counted = {
            "peak_rss_bytes": self.rss_bytes,
            "peak_process_rss_bytes": self.process_rss_bytes,
            "peak_cgroup_bytes": self.cgroup_bytes,
        }
        return {
            **counted,
            "absent": {name: Absent.NOT_AVAILABLE.value for name, figure in counted.items() if figure is None},
            "peak_used_bytes": self.used_bytes,
            "peak_device_bytes": self.device_bytes,
            "processes": len(self.pids),
            "partial": self.is_partial,
        }


def _raise(peaks: dict[str, int], label: str, count: int) -> None:
    peaks[label] = max(count, peaks.get(label, 0))


REMOVE_SECONDS = 0.5


class PeakCgroup(Struct, frozen=True):
    """A separate group. `counter`: the file with its peak."""

    folder: Path
    counter: str

    def join(self) -> None:
        """Move the calling process into the group. For the child, between fork and exec."""
        with suppress(OSError):
            (self.folder / "cgroup.procs").write_text("0")

    def read_peak(self) -> int | None:
        """Return the peak with page cache and kernel memory, None if no process was in the group."""
        try:
            return int((self.folder / self.counter).read_text()) or None
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        """Remove the group. Processes that outlive the program go back to the group above."""
        with suppress(OSError):
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (self.folder.parent / "cgroup.procs").write_text(pid)
        until = time.monotonic() + REMOVE_SECONDS
        while os.path.exists(self.folder) and time.monotonic() < until:
            with suppress(OSError):
                self.folder.rmdir()  # works once the last process has been reaped
                return
            time.sleep(0.01)


@contextmanager
def peak_cgroup(roots: Path = Path("/")) -> Iterator[PeakCgroup | None]:
    """Yield a new group below this process's own, so that all its limits hold. None where that is not permitted."""
    found = find_home(roots)
    group = None if found is None else make(*found)
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def make(home: Path, counter: str) -> PeakCgroup | None:
    group = PeakCgroup(home / f"memwatch-run-{os.getpid()}", counter)
    try:
        group.folder.mkdir()
    except OSError:
        return None
    if os.path.exists(group.folder / counter) and os.access(group.folder / "cgroup.procs", os.W_OK):
        return group
    group.remove()
    return None


def find_home(roots: Path) -> tuple[Path, str] | None:
    """Return the folder of this process's memory group, and the name of the counter.

    Version 2 allows groups below one that has processes only at the root, where memory is then in
    cgroup.subtree_control. Version 1 allows them everywhere.
    """
    try:
        lines = (roots / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return roots / "sys/fs/cgroup/memory" / path.lstrip("/"), "memory.max_usage_in_bytes"
        if not controllers:
            home = roots / "sys/fs/cgroup" / path.lstrip("/")
            if has_memory(home):
                return home, "memory.peak"
    return None


def has_memory(home: Path) -> bool:
    try:
        return "memory" in (home / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
