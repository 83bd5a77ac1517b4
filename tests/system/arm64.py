"""Check the arm64 package on an emulated processor: python tests/system/arm64.py FILE.deb.

Debian's Python for arm64 and the package are unpacked side by side, and qemu runs the daemon from that folder. The
daemon must read this machine's memory, serve the page, and exit on SIGTERM. Nothing is installed; only debootstrap
needs root. Child processes of the daemon are not emulated.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TREE = ROOT / "out" / "system" / "arm64"
SUITE = "bookworm"
SECONDS = 120.0
START = """
import site, sys
site.addsitedir({packages!r})
from memwatchd.cli import main
main({arguments!r})
"""


def make_tree(package: Path) -> None:
    """Unpack Debian and the package. The first stage of debootstrap runs no arm64 program and keeps .deb files."""
    if not (TREE / "usr/bin/python3").exists():
        shutil.rmtree(TREE, ignore_errors=True)
        TREE.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", "--include=python3", SUITE]
        subprocess.run([*command, str(TREE)], check=True, stdout=subprocess.DEVNULL)
        for file in sorted((TREE / "var/cache/apt/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(file), str(TREE)], check=True)
    shutil.rmtree(TREE / "usr/lib/memwatchd", ignore_errors=True)
    subprocess.run(["dpkg-deb", "--extract", str(package), str(TREE)], check=True)


def start_daemon(port: int) -> subprocess.Popen[bytes]:
    python = (TREE / "usr/bin/python3").resolve()
    packages = TREE / f"usr/lib/memwatchd/lib/{python.name}/site-packages"
    text = START.format(packages=str(packages), arguments=["--listen", f"127.0.0.1:{port}"])
    return subprocess.Popen(["qemu-aarch64", "-L", str(TREE), str(python), "-c", text])


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return bytes(answer.read())


def wait_until_ready(port: int, daemon: subprocess.Popen[bytes]) -> float:
    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        assert daemon.poll() is None, f"the daemon exited with {daemon.returncode}"
        try:
            get(port, "/readyz")
        except OSError:
            time.sleep(0.5)
        else:
            return time.monotonic() - began
    raise AssertionError(f"not ready after {SECONDS:.0f} s")


def check(port: int) -> None:
    """Compare the daemon's answers about this machine with the kernel's."""
    snapshot = json.loads(get(port, "/api/v1/snapshot"))
    known = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert snapshot["pools"][0]["size_bytes"] == int(known.split()[1]) * 1024
    assert b"memwatch_pool_size_bytes" in get(port, "/metrics")
    assert b"<h1" in get(port, "/")


def main() -> None:
    make_tree(Path(sys.argv[1]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon = start_daemon(port)
    try:
        print(f"ready after {wait_until_ready(port, daemon):.0f} s under emulation")
        check(port)
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(30)
    finally:
        daemon.kill()
        daemon.wait()
    assert code == 0, f"the daemon exited with {code}"
    print("1 passed: the arm64 package runs, serves and exits")


if __name__ == "__main__":
    main()
