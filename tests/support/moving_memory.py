"""A copy of a simulated machine whose meminfo is changed: another use, and memory that moves all the time."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STEP_SECONDS = 0.09
STEP_KIB = 1 << 20


class CopiedMachine:
    """A copy in `folder` of a machine with the folders proc, sys and root."""

    def __init__(self, machine: Path, folder: Path) -> None:
        self._folder = folder
        shutil.copytree(machine, folder, symlinks=True)
        self.meminfo: Path = folder / "proc/meminfo"

    @property
    def roots(self) -> list[str]:
        """Return the arguments that give memwatchd this machine as its host."""
        parts = (("procfs", "proc"), ("sysfs", "sys"), ("rootfs", "root"))
        return [f"--{flag}={self._folder / name}" for flag, name in parts]

    def use(self, ratio: float, free_ratio: float = 0.25) -> None:
        """Have this part of the memory in use. `free_ratio`: free part of the rest; the others are page cache."""
        text = self.meminfo.read_text()
        left = round((1 - ratio) * int(re.findall(r"MemTotal: +(\d+)", text)[0]))
        for name, kib in (("MemAvailable", left), ("MemFree", round(free_ratio * left))):
            text = re.sub(rf"({name}: +)\d+", rf"\g<1>{kib}", text)
        self.meminfo.write_text(text)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Move 1 GiB between used and available every tenth of a second."""
        text, over = self.meminfo.read_text(), threading.Event()
        (kib,) = re.findall(r"MemAvailable: +(\d+)", text)
        texts = text, text.replace(kib, str(int(kib) - STEP_KIB))

        def move() -> None:
            with self.meminfo.open("r+b", buffering=0) as file:
                turn = 0
                while not over.wait(STEP_SECONDS):
                    file.seek(0)
                    file.write(texts[turn % 2].encode())
                    turn += 1

        mover = threading.Thread(target=move)
        mover.start()
        try:
            yield
        finally:
            over.set()
            mover.join()
