"""Check incidents that really happen: python tests/system/incidents.py.

A Debian machine with a separate kernel runs in QEMU, emulated, so the processor need not support it. In it a unit
reaches its limit, earlyoom, nohang and systemd-oomd kill, an administrator kills, and the kernel runs out of memory
while the daemon's file system is frozen. Then the power is cut twice. Needs root. Exits with 77 if it cannot run.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

from incident_truths import Record, judge

from machine import SUITE, base_of

ROOT = Path(__file__).parent.parent.parent
WORK = ROOT / "out" / "system"
PACKAGES = "linux-image-cloud-amd64 initramfs-tools systemd-oomd earlyoom nohang"
QEMU = "qemu-system-x86_64"
BOOT_SECONDS, NOT_RUN = 1200.0, 77
# An emulated processor starts the daemon in 20 s, and in more than 60 s on a busy host.
SLOW = "[Service]\nTimeoutStartSec=300\nWatchdogSec=120\n"
# Programs that are started later, and units that only take time.
DISABLED = ["earlyoom", "nohang", "nohang-desktop", "systemd-oomd", "e2scrub_reap.service", "getty@tty1.service"]
MASKED = ["apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer"]
UNIT = """[Unit]
After=memwatchd.service multi-user.target
[Service]
OOMScoreAdjust=-1000
ExecStart=python3 /root/guest/check.py
[Install]
WantedBy=multi-user.target
"""
SETTINGS = '[collectors.journal]\nenabled = true\n[processes]\ninterval = "1s"\n'
FSTAB = "/dev/vda / ext4 defaults 0 1\n/dev/vdb /var/lib/memwatchd ext4 defaults 0 1\n"
OOMD = "[OOM]\nSwapUsedLimit=50%\nDefaultMemoryPressureDurationSec=2s\n"


def base_with_kernel() -> Path:
    """Return a Debian with a kernel and the programs that kill, created once."""
    base = WORK / f"{SUITE}-kernel"
    if not (base / "made").exists():
        shutil.rmtree(base, ignore_errors=True)
        plain = base_of(WORK)
        subprocess.run(["cp", "--archive", "--reflink=auto", plain, base], check=True)
        (base / "made").unlink()
        shutil.copy("/etc/resolv.conf", base / "etc/resolv.conf")
        install = f"apt-get update && apt-get install --yes --no-install-recommends {PACKAGES} && apt-get clean"
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(
            ["chroot", base, "sh", "-ec", install], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        (base / "made").touch()
    return base


def make_disks(package: Path) -> list[Path]:
    """Create the system's disk with the package installed, and one for the daemon's state."""
    root, disk, state = WORK / "incidents", WORK / "incidents.img", WORK / "incidents-state.img"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", base_with_kernel(), root], check=True)
    shutil.copy(package, root / "root/memwatchd.deb")
    shutil.copytree(Path(__file__).parent / "guest", root / "root/guest")
    install = ["chroot", str(root), "dpkg", "--install", "/root/memwatchd.deb"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    (root / "etc/memwatchd/memwatchd.toml").write_text(SETTINGS)
    drop_ins = root / "etc/systemd/system/memwatchd.service.d"
    drop_ins.mkdir(parents=True)
    for name in ("journal.conf", "kernel-log.conf"):
        shutil.copy(root / "usr/share/doc/memwatchd/drop-ins" / name, drop_ins / name)
    (root / "etc/systemd/system/check.service").write_text(UNIT)
    (root / "etc/fstab").write_text(FSTAB)
    (root / "etc/systemd/oomd.conf.d").mkdir()
    (root / "etc/systemd/oomd.conf.d/99-quick.conf").write_text(OOMD)
    (drop_ins / "slow.conf").write_text(SLOW)
    for verb, units in (("enable", ["check.service"]), ("disable", DISABLED), ("mask", MASKED)):
        subprocess.run(["chroot", root, "systemctl", verb, *units], check=True, capture_output=True)
    for image, size, folder in ((disk, "2000M", ("-d", str(root))), (state, "256M", ())):
        image.unlink(missing_ok=True)
        subprocess.run(["mkfs.ext4", "-q", *folder, str(image), size], check=True)
    boot = WORK / "incidents-boot"
    boot.mkdir(exist_ok=True)
    for name in ("vmlinuz", "initrd.img"):
        (found,) = (root / "boot").glob(f"{name}-*")
        shutil.copy(found, boot / name)
    shutil.rmtree(root)
    return [disk, state]


def command_of(disks: list[Path], log: Path) -> list[str]:
    boot = WORK / "incidents-boot"
    drives = [f"file={disk},format=raw,if=virtio" for disk in disks]
    return [
        *(QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-smp", "2"),
        *("-kernel", str(boot / "vmlinuz"), "-initrd", str(boot / "initrd.img")),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off"),
        *(word for drive in drives for word in ("-drive", drive)),
        *("-display", "none", "-nic", "none", "-no-reboot"),
        *("-serial", f"file:{log}", "-serial", "stdio"),
    ]


def boot(disks: list[Path], log: Path) -> Generator[tuple[str, Record], None, None]:
    """Boot the machine and yield what it sends. Closing the iterator cuts its power."""
    with subprocess.Popen(
        command_of(disks, log), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
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


def find_obstacle() -> str:
    """Return why the machine cannot run here, or an empty text."""
    if platform.machine() != "x86_64":
        return f"the machine of the test has a kernel for x86-64, and this host is {platform.machine()}"
    return "" if shutil.which(QEMU) else f"{QEMU} is not installed (Debian: qemu-system-x86)"


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
