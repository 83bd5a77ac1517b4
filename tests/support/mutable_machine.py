"""Machine folder whose memory changes while a daemon watches it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from msgspec import Struct

from support.paths import MACHINES


class MutableMachine(Struct, frozen=True):
    """Copy of a machine folder."""

    folder: Path

    @classmethod
    def of(cls, name: str, folder: Path) -> MutableMachine:
        shutil.copytree(MACHINES / name, folder, symlinks=True)
        return cls(folder)

    @property
    def arguments(self) -> list[str]:
        return [f"--{root}fs={self.folder / root}" for root in ("proc", "sys", "root")]

    def use(self, ratio: float) -> None:
        """Set available memory, and free memory and caches within it, so that this part of System RAM is used."""
        meminfo = self.folder / "proc/meminfo"
        text = meminfo.read_bytes()
        kib = {name.decode(): int(value) for name, value in re.findall(rb"(?m)^(\S+):\s+(\d+)", text)}
        available = int(kib["MemTotal"] * (1 - ratio))
        kib |= {"MemAvailable": available, "MemFree": available // 2}
        lists = ("Active(file)", "Inactive(file)", "SReclaimable")
        kept = min(1.0, available / 2 / max(1, sum(kib.get(name, 0) for name in lists)))
        shared = kib.get("Shmem", 0)
        kib["Cached"] = shared + int((kib.get("Cached", shared) - shared) * kept)
        kib |= {name: int(kib[name] * kept) for name in (*lists, "Buffers") if name in kib}
        for name in ("MemAvailable", "MemFree", "Cached", "Buffers", *lists):
            line = f"{name}:{kib.get(name, 0):>{23 - len(name)}}"
            text = re.sub(rf"(?m)^{re.escape(name)}:\s+\d+".encode(), line.encode(), text)
        # In place and in one write: the daemon keeps the file open.
        with meminfo.open("r+b", buffering=0) as file:
            file.write(text)
            file.truncate()

    def show(self, pid: int) -> None:
        """Add a real process of this machine."""
        (self.folder / f"proc/{pid}").symlink_to(f"/proc/{pid}")

    def set_oom_kills(self, oom_kills: int) -> None:
        vmstat = self.folder / "proc/vmstat"
        text = re.sub(rb"(?m)^oom_kill \d+", f"oom_kill {oom_kills}".encode(), vmstat.read_bytes())
        with vmstat.open("r+b", buffering=0) as file:
            file.write(text)
            file.truncate()

    def garble(self, file: str) -> None:
        """Make an open file unreadable to its collector."""
        with (self.folder / file).open("r+b", buffering=0) as opened:
            opened.write(b"?")
