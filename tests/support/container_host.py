"""Simulated host with one container."""

from __future__ import annotations

import os
from pathlib import Path

from support.process_folders import add_process, stat_line

OFTEN = '[processes]\ninterval = "1s"\n'
MIB = 1 << 20


def simulated(folder: Path, *, contained: bool = False, mount: str = "") -> tuple[str, ...]:
    """Create a host with a container whose only process holds 512 MiB; return the arguments of its daemon."""
    procfs, root = folder / "proc", folder / "root"
    identity = "c0ffee" * 10 + "beef"
    cgroup = f"/kubepods.slice/kubepods-pod{'1a' * 16}.slice/cri-containerd-{identity}.scope"
    (procfs / "self").mkdir(parents=True)
    (procfs / "stat").write_text("btime 1700000000\n")
    (procfs / "meminfo").write_text(
        "MemTotal:       8388608 kB\nMemFree:        4194304 kB\nMemAvailable:   6291456 kB\n"
        "AnonPages:      1048576 kB\nShmem:            1024 kB\nSUnreclaim:       1024 kB\n"
    )
    (procfs / "self/mountinfo").write_text(
        f"30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n22 1 0:21 / /proc rw - proc proc {mount or 'rw'}\n"
    )
    (procfs / "self/cgroup").write_text("0::/system.slice/memwatchd.service\n")
    if not contained and not mount:
        add_process(procfs, stat_line(2, "kthreadd", rss=0, flags=0x208040))
    pages = 512 * MIB // os.sysconf("SC_PAGE_SIZE")
    status = b"Uid:\t1000\t1000\t1000\t1000\n"
    add_process(procfs, stat_line(77, "serve", rss=pages), cgroup=f"0::{cgroup}\n".encode(), status=status)
    counted = folder / "sys/fs/cgroup" / cgroup.lstrip("/")
    counted.mkdir(parents=True)
    (counted / "memory.current").write_text(f"{600 * MIB}\n")
    (counted.parent / "memory.current").write_text(f"{700 * MIB}\n")
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").write_text("ada:x:1000:1000::/home/ada:/bin/sh\n")
    if contained:
        (root / ".dockerenv").touch()
    return (f"--procfs={procfs}", f"--sysfs={folder / 'sys'}", f"--rootfs={root}")
