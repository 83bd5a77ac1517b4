"""Simulated host whose memory, processes, kernel log and journal change while a daemon watches it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.kmsg_samples import log_to
from support.process_folders import add_process, stat_line

GIB = 1 << 30
TOTAL_KIB = 8 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
CONTAINER = "1f6b" * 16
GROUPS = {77: f"/system.slice/docker-{CONTAINER}.scope", 78: "/user.slice/user-1000.slice/session-2.scope"}
NAMES = {77: "vllm", 78: "gnome-shell"}
# In place of journalctl: prints what the test appends to a file, as `--follow` does.
JOURNALCTL = '#!/bin/sh\nexec tail -n +1 -f "{file}"\n'
CONFIG = '[processes]\ninterval = "1s"\n[collectors.journal]\nenabled = true\npath = "{program}"\n'


class IncidentHost:
    """8 GiB of System RAM, a server in a container, and a desktop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.procfs, self.root = folder / "proc", folder / "root"
        self.journal, self.program = folder / "journal", folder / "journalctl"
        (self.procfs / "self").mkdir(parents=True)
        (self.procfs / "self/mountinfo").write_text("30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        (self.procfs / "self/cgroup").write_text("0::/system.slice/memwatchd.service\n")
        (self.procfs / "stat").write_text("btime 1700000000\n")
        (folder / "sys/fs/cgroup").mkdir(parents=True)
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev/kmsg").write_text("")
        self.journal.write_text("")
        self.program.write_text(JOURNALCTL.format(file=self.journal))
        self.program.chmod(0o755)
        add_process(self.procfs, stat_line(2, "kthreadd", rss=0, flags=0x208040))
        self._lines = 1
        self.use(2.0, {77: 1.0, 78: 0.3})

    @property
    def arguments(self) -> list[str]:
        return [f"--procfs={self.procfs}", f"--sysfs={self.folder / 'sys'}", f"--rootfs={self.root}"]

    @property
    def config(self) -> str:
        return CONFIG.format(program=self.program)

    def use(self, used_gib: float, processes: Mapping[int, float]) -> None:
        """Set the use of System RAM, and the sizes of processes in GiB."""
        available = TOTAL_KIB - int(used_gib * (1 << 20))
        text = f"MemTotal: {TOTAL_KIB:10} kB\nMemFree: {available:10} kB\nMemAvailable: {available:10} kB\n"
        overwrite(self.procfs / "meminfo", text)
        for pid, size in processes.items():
            pages = int(size * GIB) // PAGE
            files = {"cgroup": f"0::{GROUPS[pid]}\n".encode(), "status": b"Uid:\t1000\t1000\t1000\t1000\n"}
            (self.procfs / str(pid)).mkdir(exist_ok=True)
            for name, data in {"stat": stat_line(pid, NAMES[pid], rss=pages), **files}.items():
                overwrite(self.procfs / str(pid) / name, data.decode())

    def fill(self, seconds: float = 3.0) -> None:
        """Let the server take the memory in some steps."""
        steps = 12
        for step in range(steps + 1):
            size = 1.0 + 5.8 * step / steps
            self.use(size + 1.0, {77: size, 78: 0.3})
            time.sleep(seconds / steps)

    def end_process(self, pid: int) -> None:
        for file in (self.procfs / str(pid)).iterdir():
            file.unlink()
        (self.procfs / str(pid)).rmdir()

    def log_kernel(self, lines: Iterable[str]) -> None:
        lines = list(lines)
        log_to(self.root / "dev/kmsg", lines, self._lines)
        self._lines += len(lines)

    def log_service(self, unit: str, text: str) -> None:
        line = {"_SYSTEMD_UNIT": unit, "MESSAGE": text, "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6))}
        with self.journal.open("a") as file:
            file.write(json.dumps(line) + "\n")


def overwrite(path: Path, text: str) -> None:
    """Write in place and at once: the daemon keeps the file open."""
    with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
        file.write(text.encode())
        file.truncate()
