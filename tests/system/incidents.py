"""Check incidents that really happen: python tests/system/incidents.py.

A Debian machine with a separate kernel runs in QEMU, emulated, so the processor need not support it. In it a unit
reaches its limit, earlyoom, nohang and systemd-oomd kill, an administrator kills, and the kernel runs out of memory
while the daemon's file system is frozen. Then the power is cut twice. Needs root. Exits with 77 if it cannot run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

from incident_truths import Record, judge
from kernel_machine import (
    BOOT_SECONDS,
    NOT_RUN,
    ROOT,
    WORK,
    command_of,
    find_obstacle,
    install,
    keep_kernel,
    make_disk,
)

SETTINGS = '[collectors.journal]\nenabled = true\n[processes]\ninterval = "1s"\n'
FSTAB = "/dev/vda / ext4 defaults 0 1\n/dev/vdb /var/lib/memwatchd ext4 defaults 0 1\n"
BOOT = WORK / "incidents-boot"
OOMD = "[OOM]\nSwapUsedLimit=50%\nDefaultMemoryPressureDurationSec=2s\n"


def make_disks(package: Path) -> list[Path]:
    """Create the system's disk with the package installed, and one for the daemon's state."""
    root = WORK / "incidents"
    drop_ins = install(root, package, SETTINGS, "check.py", FSTAB)
    for name in ("journal.conf", "kernel-log.conf"):
        shutil.copy(root / "usr/share/doc/memwatchd/drop-ins" / name, drop_ins / name)
    (root / "etc/systemd/oomd.conf.d").mkdir()
    (root / "etc/systemd/oomd.conf.d/99-quick.conf").write_text(OOMD)
    disks = [make_disk(WORK / "incidents.img", "2000M", root), make_disk(WORK / "incidents-state.img", "256M")]
    keep_kernel(root, BOOT)
    shutil.rmtree(root)
    return disks


def boot(disks: list[Path], log: Path) -> Generator[tuple[str, Record], None, None]:
    """Boot the machine and yield what it sends. Closing the iterator cuts its power."""
    with subprocess.Popen(
        command_of(BOOT, disks, log), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as machine:
        timer = threading.Timer(BOOT_SECONDS, machine.kill)
        timer.start()
        try:
            assert machine.stdout is not None
            for line in machine.stdout:
                name, _, content = line.decode("utf-8", "replace").strip().partition(" ")
                with contextlib.suppress(ValueError):
                    yield name, json.loads(content)
        finally:
            timer.cancel()
            machine.kill()


def collect(disks: list[Path]) -> dict[str, Record]:
    """Boot three times. The first two runs end by a power cut."""
    found: dict[str, Record] = {}
    for number in range(3):
        messages = boot(disks, WORK / f"incidents-{number}.log")
        for name, content in messages:
            print(f"  {time.strftime('%X')} {name} {str(content)[:3000] if name == 'failed' else ''}", flush=True)
            found[f"{name}_{number}" if name in ("cut", "failed") else name] = content
            if name == "cut":
                break
        messages.close()
    return found


def main() -> int:
    if reason := find_obstacle():
        print(f"NOT RUN: {reason}")
        return NOT_RUN
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = collect(make_disks((ROOT / "dist/memwatchd.deb").resolve()))
    (WORK / "incidents.json").write_text(json.dumps(found, indent=1))
    faults = judge(found)
    lines = [
        f"{'✗' if texts else '✓'} {name}: {'; '.join(texts) or sentence_of(found[name])}\n"
        for name, texts in faults.items()
    ]
    (WORK / "incidents.txt").write_text("".join(lines))
    print("".join(lines), end="")
    return 1 if any(faults.values()) else 0


def sentence_of(content: Record) -> str:
    return str(content["incidents"][0]["sentence"])


if __name__ == "__main__":
    sys.exit(main())
