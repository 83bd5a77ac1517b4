"""A control group with a memory limit, made for a test where that is permitted, and a program that fills it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

# Pages are touched as they are taken, so many MiB in each of twenty steps a second.
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
# Reads a file again and again that is larger than the limit: nothing but waiting for pages that were just dropped.
THRASH = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
while True:
    for at in range(0, len(pages), 4096):
        pages[at]
"""


class MemoryCgroup(Struct, frozen=True):
    """`folder` is where memory is limited; `folders` are one for each hierarchy that it is in."""

    folder: Path
    folders: tuple[Path, ...]

    def add(self, pid: int) -> None:
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def inside(self) -> list[str]:
        """A command that runs another one in its place, inside from its first page on."""
        move = "".join(f"echo $$ > '{folder}/cgroup.procs'; " for folder in self.folders)
        return ["sh", "-c", f'{move}exec "$@"', "sh"]

    def leave_room(self, more_bytes: int) -> None:
        """From now on no more than what is held and so much."""
        usage, limit = ("memory.current", "memory.max")
        if not (self.folder / usage).exists():
            usage, limit = ("memory.usage_in_bytes", "memory.limit_in_bytes")
        held = int((self.folder / usage).read_text())
        (self.folder / limit).write_text(str(held + more_bytes))

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A Python program that is inside from its first page on."""
        return subprocess.Popen(
            [*self.inside, sys.executable, "-c", program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup | None]:
    """None where this user, this kernel or this container cannot make one."""
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
    """What cannot be swapped out is killed, on machines with swap as on those without."""
    for name in ("memory.swap.max", "memory.swappiness"):
        if (folder / name).exists():
            (folder / name).write_text("0")


def _homes() -> Iterator[tuple[Path, str]]:
    """Where memory is limited, and the tree of version 2 beside it, in which waiting is counted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            yield Path(point), "memory.limit_in_bytes"
        elif kind == "cgroup2":
            limited = "memory" in (Path(point) / "cgroup.subtree_control").read_text().split()
            yield Path(point), "memory.max" if limited else ""


def _remove(folder: Path) -> None:
    """A group can be removed once its last process is gone, which takes the kernel a moment."""
    for pid in (folder / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (folder.parent / "cgroup.procs").write_text(pid)
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
