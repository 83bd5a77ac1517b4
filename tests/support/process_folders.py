"""Simulated processes in a folder like /proc, with the kernel's file formats."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from memwatch.core.linux.files import Roots


def stat_line(pid: int, comm: str = "x", rss: int = 5, start: int = 77, flags: int = 0x400100) -> bytes:
    lazy_app = [pid, f"({comm})", "S", 1, pid, pid, 0, -1, flags]
    back = [0, 0, 0, 0, 1, 1, 0, 0, 20, 0, 1, 0, start, 999, rss]
    return " ".join(map(str, [*lazy_app, *back, *[0] * 28])).encode() + b"\n"


def statm_line(rss: int) -> bytes:
    return b"999 %d 3 1 0 40 0\n" % rss


def folder_of(procfs: Path, *stats: bytes) -> Roots:
    """Create processes with stat only: without statm each reading parses stat again."""
    procfs.mkdir(exist_ok=True)
    (procfs / "stat").write_bytes(b"cpu 1\nbtime 1700000000\n")
    for stat in stats:
        add_process(procfs, stat)
    return Roots(procfs, procfs, procfs)


def add_process(procfs: Path, stat: bytes, **files: bytes) -> None:
    """Add a process with `stat` and further files by name. Pathlib would take four times as long."""
    folder = f"{procfs}/{stat.split(maxsplit=1)[0].decode()}"
    with suppress(FileExistsError):
        os.mkdir(folder)
    for name, data in {"stat": stat, **files}.items():
        with open(f"{folder}/{name}", "wb", buffering=0) as file:
            file.write(data)
