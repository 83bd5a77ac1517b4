"""Fresh Debian systems in a folder, made by debootstrap and entered with chroot. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

# What a system takes from this machine to reach package registries.
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/xdg/pip", "/etc/apt/apt.conf.d")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
FOLDERS = ("/proc", "/dev")
MAX_SECONDS = 900


def chroot_command(root: Path) -> tuple[str, ...]:
    return ("chroot", str(root))


@contextmanager
def debian_root(release: str, packages: str, scratch: Path) -> Iterator[Path]:
    """Return the folder of a Debian system with these packages (`python3,make`); it is removed at the end."""
    base = scratch / f"{release}-{packages.replace(',', '-')}"
    make_base(release, packages, base)
    root = base.with_suffix(".used")
    remove(root)
    subprocess.run(["cp", "--archive", "--reflink=auto", base, root], check=True)
    with mounted(root):
        yield root
    remove(root)


def remove(root: Path) -> None:
    """Remove a folder, unless something is still mounted below it, which would be emptied."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    below = [place for place in mounts if place.startswith(f"{root}/")]
    assert not below, f"still mounted: {below}"
    shutil.rmtree(root, ignore_errors=True)


def make_base(release: str, packages: str, base: Path) -> None:
    if (base / "made").exists():
        return
    shutil.rmtree(base, ignore_errors=True)
    base.parent.mkdir(parents=True, exist_ok=True)
    mirror = [url] if (url := os.environ.get("MIRROR")) else []
    command = ["debootstrap", "--variant=minbase", f"--include=ca-certificates,{packages}", release, str(base)]
    done = subprocess.run([*command, *mirror], capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-400:] + done.stderr[-400:]
    (base / "made").touch()


def unmount(target: Path) -> None:
    subprocess.run(["umount", "--recursive", "--lazy", target], check=True)


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """Mount /proc, /dev and the files of `NETWORK` there."""
    links = [place for place in os.environ.get("PIP_FIND_LINKS", "").split() if place.startswith("/")]
    with ExitStack() as stack:
        for place in (*FOLDERS, *NETWORK, CERTIFICATES, *links):
            source, target = Path(place), root / place.lstrip("/")
            if not source.exists():
                continue
            if source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
            subprocess.run(["mount", "--rbind" if place in FOLDERS else "--bind", source, target], check=True)
            subprocess.run(["mount", "--make-rslave", target], check=True)
            stack.callback(unmount, target)
        yield
