"""Debian machine with its own kernel in QEMU: its disk with the package, and the command that starts it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

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
ExecStart=python3 /root/guest/{program}
[Install]
WantedBy=multi-user.target
"""


def find_obstacle() -> str:
    """Return why the machine cannot run here, or an empty text."""
    if platform.machine() != "x86_64":
        return f"the machine of the test has a kernel for x86-64, and this host is {platform.machine()}"
    return "" if shutil.which(QEMU) else f"{QEMU} is not installed (Debian: qemu-system-x86)"


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


def install(root: Path, package: Path, settings: str, program: str, fstab: str) -> Path:
    """Create the system's folder: the package, its settings, and a program of the guest that runs at each boot.

    Return the folder of the service's drop-ins.
    """
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", base_with_kernel(), root], check=True)
    shutil.copy(package, root / "root/memwatchd.deb")
    shutil.copytree(Path(__file__).parent / "guest", root / "root/guest")
    command = ["chroot", str(root), "dpkg", "--install", "/root/memwatchd.deb"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (root / "etc/memwatchd/memwatchd.toml").write_text(settings)
    (root / "etc/systemd/system/check.service").write_text(UNIT.format(program=program))
    (root / "etc/fstab").write_text(fstab)
    # At the first boot systemd would enable again whatever has no preset: also earlyoom and nohang.
    (root / "etc/systemd/system-preset").mkdir(exist_ok=True)
    (root / "etc/systemd/system-preset/00-none.preset").write_text("disable *\n")
    drop_ins = root / "etc/systemd/system/memwatchd.service.d"
    drop_ins.mkdir(parents=True)
    (drop_ins / "slow.conf").write_text(SLOW)
    for verb, units in (("enable", ["check.service"]), ("disable", DISABLED), ("mask", MASKED)):
        systemctl(root, verb, *units)
    return drop_ins


def systemctl(root: Path, *arguments: str) -> None:
    subprocess.run(["chroot", root, "systemctl", *arguments], check=True, capture_output=True)


def make_disk(image: Path, size: str, root: Path | None = None) -> Path:
    """Create a disk with the content of a folder, or an empty one."""
    image.unlink(missing_ok=True)
    content = () if root is None else ("-d", str(root))
    subprocess.run(["mkfs.ext4", "-q", *content, str(image), size], check=True)
    return image


def keep_kernel(root: Path, boot: Path) -> None:
    """Copy the kernel, which QEMU loads from a file of the host."""
    boot.mkdir(exist_ok=True)
    for name in ("vmlinuz", "initrd.img"):
        (found,) = (root / "boot").glob(f"{name}-*")
        shutil.copy(found, boot / name)


def command_of(
    boot: Path,
    disks: list[Path],
    log: Path,
    network: tuple[str, ...] = ("-nic", "none"),
) -> list[str]:
    """Return the command of QEMU: console in a log, second serial port on its output."""
    drives = [f"file={disk},format=raw,if=virtio" for disk in disks]
    return [
        *(QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-smp", "2"),
        *("-kernel", str(boot / "vmlinuz"), "-initrd", str(boot / "initrd.img")),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off"),
        *(word for drive in drives for word in ("-drive", drive)),
        *("-display", "none", *network, "-no-reboot"),
        *("-serial", f"file:{log}", "-serial", "stdio"),
    ]
