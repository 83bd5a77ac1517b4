"""Simulated machine with variable memory, and settings with short alert times."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from msgspec import Struct

from support.daemon_process import Answer, RunningDaemon, get
from support.paths import MACHINES
from support.waiting import wait_until
from support.webhook_receiver import Delivery, Site
from support.webhook_samples import SECRET

QUICK = """
[pressure]
clear_after = "0s"

[alerts]
pending_for = "{pending}"
resolve_after = "{pending}"
keep_firing_for = "0s"
again_after = "0s"
"""
WEBHOOK = """
[[alerts.webhooks]]
name = "{name}"
url = "{url}"
secret = "{secret}"
"""
FULL_KIB, ROOMY_KIB = 1_000_000, 40_000_000


class AlertMachine(Struct, frozen=True):
    """Folder with the machine's /proc, /sys and /."""

    folder: Path

    @classmethod
    def of(cls, scratch: Path) -> AlertMachine:
        folder = scratch / "machine"
        shutil.copytree(MACHINES / "workstation", folder, symlinks=True)
        return cls(folder)

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of a daemon that watches this machine ten times a second."""
        roots = [f"--{name}fs={self.folder / name}" for name in ("proc", "sys")]
        return ["--interval", "100ms", *roots, f"--rootfs={self.folder / 'root'}"]

    def fill(self) -> None:
        self.set_available(FULL_KIB)

    def empty(self) -> None:
        self.set_available(ROOMY_KIB)

    def count_oom_kill(self) -> None:
        """Count one more OOM kill, as the kernel does."""
        vmstat = self.folder / "proc/vmstat"
        vmstat.write_text(vmstat.read_text().replace("\noom_kill 0\n", "\noom_kill 1\n"))

    def set_available(self, kib: int) -> None:
        """Rewrite the simulated meminfo in one write, as the kernel does."""
        lines = (MACHINES / "workstation/proc/meminfo").read_text().splitlines(keepends=True)
        width = len("MemAvailable:   ")
        changed = [
            f"{line[:width]}{kib:>{len(line) - width - 4}} kB\n" if "MemAvail" in line else line for line in lines
        ]
        with (self.folder / "proc/meminfo").open("r+b", buffering=0) as meminfo:
            meminfo.write("".join(changed).encode())


def quick_config(*sites: Site, pending: str = "400ms", extra: str = "") -> str:
    """Return settings with one webhook for each site, named site0, site1, …"""
    hooks = [WEBHOOK.format(name=f"site{number}", url=site.url, secret=SECRET) for number, site in enumerate(sites)]
    return QUICK.format(pending=pending) + "".join(hooks) + extra


def wait_for_deliveries(site: Site, count: int) -> list[Delivery]:
    wait_until(
        lambda: len(site.deliveries) >= count,
        describe=lambda: f"{len(site.deliveries)} of {count} messages arrived",
    )
    return site.deliveries


def send_test(daemon: RunningDaemon) -> Answer:
    """Request a test notification, again after Retry-After if another one was requested just before."""
    answer = request_test(daemon)
    if answer.status != 429:
        return answer
    time.sleep(float(answer.headers["retry-after"]))
    return request_test(daemon)


def request_test(daemon: RunningDaemon) -> Answer:
    return get(daemon.port, "/api/v1/alerts/test", method="POST")
