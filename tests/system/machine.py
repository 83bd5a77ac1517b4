"""Debian machine booted by systemd-nspawn from a folder; commands run in it as root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

BASE_PACKAGES = "systemd,systemd-sysv,dbus,python3,curl"
SUITE = os.environ.get("SUITE", "bookworm")
# Mirror for debootstrap; empty for its default.
MIRROR = os.environ.get("MIRROR", "")
BOOT_SECONDS = 60.0


class Machine(Struct, frozen=True):
    """Booted machine. `leader` is its first process, by its pid outside."""

    root: Path
    leader: int

    def run(self, command: str, check: bool = True) -> str:
        """Return the output of a command, errors included."""
        done = subprocess.run(
            ["nsenter", "--target", str(self.leader), "--all", "--", "sh", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
            start_new_session=True,  # else `kill 0` in the machine would also signal this process
        )
        output = done.stdout + done.stderr
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{output}"
        return output

    def property_of(self, name: str) -> str:
        """Return a property of the service in systemd."""
        return self.run(f"systemctl show --value --property={name} memwatchd").strip()

    def wait_until(self, wanted: Callable[[], bool], seconds: float = 20.0) -> float:
        """Return the seconds that it took."""
        begin = time.monotonic()
        while not wanted():
            assert time.monotonic() < begin + seconds, self.journal()
            time.sleep(0.2)
        return time.monotonic() - begin

    def journal(self) -> str:
        return self.run("journalctl -u memwatchd --no-pager -o cat | tail -n 60", check=False)

    def answers(self) -> bool:
        return '"ok"' in self.run("curl -s http://localhost:6360/readyz", check=False)


def base_of(folder: Path, suite: str = SUITE, *more: str) -> Path:
    """Return a fresh Debian with the base packages and `more`, created once by debootstrap."""
    base = folder / "-".join([suite, *more])
    if not (base / "made").exists():
        shutil.rmtree(base, ignore_errors=True)
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join([BASE_PACKAGES, *more])}",
            suite,
            str(base),
            *filter(None, [MIRROR]),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (base / "etc/machine-id").unlink(missing_ok=True)
        (base / "made").touch()
    return base


@contextmanager
def booted(base: Path, root: Path, **environ: str) -> Iterator[Machine]:
    """Run a copy of `base` without a network, and remove it at the end. `environ`: variables for systemd-nspawn."""
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", base, root], check=True)
    log = root.with_suffix(".log").open("wb")
    options = ["--register=no", "--keep-unit", "--quiet", "--private-network", "--link-journal=no"]
    process = subprocess.Popen(
        ["systemd-nspawn", *options, "-D", root, "-b"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, **environ},
    )
    try:
        machine = Machine(root, leader_of(process))
        machine.wait_until(lambda: is_up(machine), BOOT_SECONDS)
        yield machine
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        log.close()
        shutil.rmtree(root, ignore_errors=True)


def leader_of(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of the machine's process 1."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, "systemd-nspawn exited; see its log"
        for child in children.read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        time.sleep(0.1)
    raise AssertionError("systemd did not start in the machine")


def is_up(machine: Machine) -> bool:
    return machine.run("systemctl is-system-running", check=False).strip() in ("running", "degraded")
