"""Machine of 121.7 GiB whose memory collapses at a given slope, and the time until its alert is received."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from msgspec import Struct

from support.paths import MACHINES
from support.waiting import wait_until
from support.webhook_receiver import Site

GIB = 1 << 30
RESTING_GIB = 60.0
CRITICAL_RATIO = 0.95
# A separate process, so that no thread of the test delays it. Memory falls from one level to another in `argv[3]`
# seconds, a step every 2 ms. Prints the monotonic time just before the write that crosses the threshold.
WRITER = """
import sys, time
path, template, seconds, start, stop, line = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
crossed = False
with open(path, "r+b", buffering=0) as file:
    began = time.monotonic()
    while True:
        now = time.monotonic()
        part = min(1.0, (now - began) / seconds) if seconds else 1.0
        left = start - (start - stop) * part
        if left < line and not crossed:
            print(now, flush=True)
            crossed = True
        file.seek(0)
        file.write(template.replace("@" * 9, f"{round(left):9}").encode())
        if part == 1.0:
            break
        time.sleep(0.002)
"""


class Collapse(Struct, frozen=True):
    """A fall of available memory in GiB. `hold_seconds`: time at `start_gib`, after a single step from rest."""

    start_gib: float
    gib_per_second: float
    stop_gib: float = 0.0
    hold_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return (self.start_gib - self.stop_gib) / self.gib_per_second if self.gib_per_second else 0.0


class CollapsingMachine(Struct, frozen=True):
    """Folder with the machine's /proc, /sys and /, and the text of its meminfo with a gap for the figure."""

    folder: Path
    template: str
    size_kib: int

    @classmethod
    def of(cls, scratch: Path) -> CollapsingMachine:
        folder = scratch / "machine"
        shutil.copytree(MACHINES / "gb10", folder, symlinks=True)
        text = (folder / "proc/meminfo").read_text()
        template = re.sub(r"(MemAvailable:)\s+\d+", lambda found: f"{found[1]} {'@' * 9}", text)
        machine = cls(folder, template, int(re.findall(r"MemTotal: +(\d+)", text)[0]))
        machine.set_available(RESTING_GIB)
        return machine

    @property
    def arguments(self) -> list[str]:
        roots = [f"--{name}fs={self.folder / name}" for name in ("proc", "sys")]
        return [*roots, f"--rootfs={self.folder / 'root'}"]

    @property
    def size_gib(self) -> float:
        return self.size_kib * 1024 / GIB

    @property
    def critical_gib(self) -> float:
        """Return what is left where use becomes critical."""
        return (1 - CRITICAL_RATIO) * self.size_gib

    def set_available(self, gib: float) -> None:
        text = self.template.replace("@" * 9, f"{round(gib * GIB / 1024):9}")
        path = self.folder / "proc/meminfo"
        with path.open("r+b", buffering=0) as meminfo:
            meminfo.write(text.encode())
            meminfo.truncate()

    def seconds_to_receiver(self, site: Site, collapse: Collapse) -> float:
        """Run a collapse; return the time from the threshold to the received alert, negative if it came earlier."""
        before = len(firing_times(site))
        if collapse.hold_seconds:
            self.set_available(collapse.start_gib)
            time.sleep(collapse.hold_seconds)
        kib = [gib * GIB / 1024 for gib in (collapse.start_gib, collapse.stop_gib, self.critical_gib)]
        figures = [repr(figure) for figure in (collapse.seconds, *kib)]
        command = [sys.executable, "-I", "-c", WRITER, str(self.folder / "proc/meminfo"), self.template, *figures]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            crossed = float(writer.stdout.readline())
        wait_until(lambda: len(firing_times(site)) > before, describe=lambda: "no alert was received")
        return firing_times(site)[before] - crossed

    def recover(self, site: Site, seconds: float) -> None:
        """Return to rest, wait for the resolved alert, and rest for some time."""
        self.set_available(RESTING_GIB)
        wait_until(lambda: len(site.deliveries) == 2 * len(firing_times(site)))
        time.sleep(seconds)


def firing_times(site: Site) -> list[float]:
    """Return the times when alerts about critical pressure were received, in monotonic seconds."""
    return [one.at for one in list(site.deliveries) if json.loads(one.body)["event"] == "pressure.critical"]
