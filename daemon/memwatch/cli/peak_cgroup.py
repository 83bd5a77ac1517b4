"""Control group for one program, whose peak the kernel counts. Made only below the caller's own group."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

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
