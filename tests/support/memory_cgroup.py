"""Control group with a memory limit, created where permitted, and programs that fill it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

# Touches pages as they are allocated: this many MiB a second, in twenty steps a second.
HOG = """
import sys, time
step, most = int(float(sys.argv[1]) * 2**20 / 20), float(sys.argv[2]) * 2**20
kept, taken = [], 0
while taken < most:
    kept.append(bytearray(b"x") * step)
    taken += step
    time.sleep(0.05)
time.sleep(600)
"""
# Reads a file larger than the limit repeatedly, so that it only waits for pages just dropped.
THRASH = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
while True:
    for at in range(0, len(pages), 4096):
        pages[at]
"""


class MemoryCgroup(Struct, frozen=True):
    """Control group. `folder` has the memory limit; `folders` are its folders in all hierarchies."""

    folder: Path
    folders: tuple[Path, ...]

    def add(self, pid: int) -> None:
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def inside(self) -> list[str]:
        """Return a command that replaces itself by another one, in the group from its first page on."""
        move = "".join(f"echo $$ > '{folder}/cgroup.procs'; " for folder in self.folders)
        return ["sh", "-c", f'{move}exec "$@"', "sh"]

    def leave_room(self, more_bytes: int) -> None:
        """Limit the group to its current use plus this much."""
        usage, limit = ("memory.current", "memory.max")
        if not (self.folder / usage).exists():
            usage, limit = ("memory.usage_in_bytes", "memory.limit_in_bytes")
        held = int((self.folder / usage).read_text())
        (self.folder / limit).write_text(str(held + more_bytes))

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python program in the group, from its first page on."""
        return subprocess.Popen(
            [*self.inside, sys.executable, "-c", program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup | None]:
    """Yield a new group; None where this user, kernel or container cannot create one."""
    name = f"memwatch-test-{os.getpid()}"
    made: list[Path] = []
    try:
        yield _made(name, limit_bytes, made)
    finally:
        for folder in made:
            _remove(folder)


def _made(name: str, limit_bytes: int, made: list[Path]) -> MemoryCgroup | None:
    try:
        for mount, limit in _homes():
            folder = mount / name
            folder.mkdir()
            made.append(folder)
            if limit:
                (folder / limit).write_text(str(limit_bytes))
                _refuse_swap(folder)
    except OSError:
        return None
    limited = [folder for folder in made if (folder / "memory.stat").exists()]
    return MemoryCgroup(limited[0], tuple(made)) if limited else None


def _refuse_swap(folder: Path) -> None:
    """Disable swap, so that machines with swap kill processes as those without do."""
    for name in ("memory.swap.max", "memory.swappiness"):
        if (folder / name).exists():
            (folder / name).write_text("0")


def _homes() -> Iterator[tuple[Path, str]]:
    """Yield the hierarchy that limits memory, and the tree of version 2 beside it, which counts stalls."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            yield Path(point), "memory.limit_in_bytes"
        elif kind == "cgroup2":
            limited = "memory" in (Path(point) / "cgroup.subtree_control").read_text().split()
            yield Path(point), "memory.max" if limited else ""


def _remove(folder: Path) -> None:
    """Remove a group; this works once its last process is gone, which takes the kernel a moment."""
    for pid in (folder / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (folder.parent / "cgroup.procs").write_text(pid)
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
