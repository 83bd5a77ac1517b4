"""Control group with a limit of CPU time, created where permitted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

PERIOD_MICROSECONDS = 100_000


class CpuCgroup(Struct, frozen=True):
    """Group whose processes get a part of one core together."""

    folder: Path

    @property
    def inside(self) -> list[str]:
        """Return a command that replaces itself by another one, in the group."""
        return ["sh", "-c", f"echo $$ > '{self.folder}/cgroup.procs'; exec \"$@\"", "sh"]

    def kill(self) -> None:
        """Kill all processes of the group, also daemons that left their session."""
        for _ in range(100):
            pids = (self.folder / "cgroup.procs").read_text().split()
            if not pids:
                return
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def cpu_cgroup(cores: float, mounts: Path = Path("/proc/mounts")) -> Iterator[CpuCgroup | None]:
    """Yield a new group of version 2 or 1; None where this user, kernel or container cannot create one."""
    group = _made(cores, mounts)
    try:
        yield group
    finally:
        if group:
            group.kill()
            _remove(group.folder)


def _made(cores: float, mounts: Path) -> CpuCgroup | None:
    for mount, is_version_2 in homes(mounts):
        folder = mount / f"memwatch-stress-{threading.get_native_id()}"
        try:
            folder.mkdir()
            for name, value in limits_of(cores, is_version_2).items():
                (folder / name).write_text(value)
        except OSError:
            _remove(folder)
            continue
        return CpuCgroup(folder)
    return None


def limits_of(cores: float, is_version_2: bool) -> dict[str, str]:
    """Return the files of a group, and what to write to them."""
    quota, period = str(int(cores * PERIOD_MICROSECONDS)), str(PERIOD_MICROSECONDS)
    if is_version_2:
        return {"cpu.max": f"{quota} {period}"}
    return {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}


def homes(mounts: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the hierarchies that may limit CPU time, and if they are of version 2."""
    for line in mounts.read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup2" and "cpu" in (Path(point) / "cgroup.subtree_control").read_text().split():
            yield Path(point), True
        elif kind == "cgroup" and "cpu" in options.split(","):
            yield Path(point), False


def _remove(folder: Path) -> None:
    """Remove a group; this works once its last process is gone, which takes the kernel a moment."""
    for _ in range(100):
        if not folder.exists():
            return
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
