"""Control group with little memory, and a program that fills it, where this user may create one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
FULL_PART = 0.99

HOG = """
import sys, time
from pathlib import Path
usage, wanted, held = Path(sys.argv[1]), int(sys.argv[2]), []
Path("/proc/self/oom_score_adj").write_text("500")
while True:
    while int(usage.read_text()) < wanted:
        held.append(bytearray(b"x" * 262144))
    time.sleep(0.005)
"""


class NoMemoryGroupError(Exception):
    """No such group can be created; the text gives the reason."""


class LimitedGroup(Struct, frozen=True):
    """Control group and the names of its files for limit and usage."""

    folder: Path
    limit: str
    usage: str

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this process and its later children into the group, as only memory allocated there is charged."""
        home = home_of_this_process(self.folder.parent)
        self.take(os.getpid())
        try:
            yield
        finally:
            (home / "cgroup.procs").write_text(str(os.getpid()))

    def used_part(self) -> float:
        return int((self.folder / self.usage).read_text()) / int((self.folder / self.limit).read_text())


@contextmanager
def limited_group(limit_bytes: int) -> Iterator[LimitedGroup]:
    """Yield a group with this limit; raise NoMemoryGroupError if none can be created."""
    if (V1 / "memory.limit_in_bytes").exists():
        group = LimitedGroup(V1 / f"memwatch-bench-{os.getpid()}", "memory.limit_in_bytes", "memory.usage_in_bytes")
    elif "memory" in _read(V2 / "cgroup.subtree_control").split():
        group = LimitedGroup(V2 / f"memwatch-bench-{os.getpid()}", "memory.max", "memory.current")
    else:
        raise NoMemoryGroupError("no memory controller of control groups is mounted")
    try:
        group.folder.mkdir()
        (group.folder / group.limit).write_text(str(limit_bytes))
    except OSError as error:
        raise NoMemoryGroupError(f"a control group cannot be created ({error.strerror}); try as root") from None
    try:
        yield group
    finally:
        _remove(group.folder)


@contextmanager
def filled(group: LimitedGroup) -> Iterator[subprocess.Popen[bytes]]:
    """Fill the group to 99 % with another process while the block runs."""
    limit = int((group.folder / group.limit).read_text())
    command = [sys.executable, "-c", HOG, str(group.folder / group.usage), str(int(limit * FULL_PART))]
    with subprocess.Popen(command, preexec_fn=lambda: group.take(os.getpid())) as hog:
        until = time.monotonic() + 20
        while group.used_part() < FULL_PART - 0.005 and time.monotonic() < until:
            time.sleep(0.05)
        yield hog
        hog.kill()


def home_of_this_process(root: Path) -> Path:
    """Return the group of this process, of version 1 or 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == ("memory" if root == V1 else ""):
            return root / path.lstrip("/")
    return root


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _remove(folder: Path) -> None:
    """Remove the group, which is empty shortly after its last process has ended."""
    until = time.monotonic() + 5
    while (folder / "cgroup.procs").read_text().strip() and time.monotonic() < until:
        time.sleep(0.05)
    folder.rmdir()
