"""The arm64 package under an emulated processor: python tests/system/arm64.py FILE.deb.

Debian's Python for arm64 and the package are unpacked side by side, and qemu runs the daemon out of that folder: it
must find this machine's memory, serve the page, and leave when it is told to. Nothing is installed; root is needed
for debootstrap only. Processes that the daemon would start are not emulated.
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
    """The first stage of debootstrap runs nothing of the other architecture; it leaves the packages that it got."""
    if not (TREE / "usr/bin/python3").exists():
        shutil.rmtree(TREE, ignore_errors=True)
        TREE.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", "--include=python3", SUITE]
        subprocess.run([*command, str(TREE)], check=True, stdout=subprocess.DEVNULL)
        for file in sorted((TREE / "var/cache/apt/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(file), str(TREE)], check=True)
    shutil.rmtree(TREE / "usr/lib/memwatchd", ignore_errors=True)
    subprocess.run(["dpkg-deb", "--extract", str(package), str(TREE)], check=True)


def started(port: int) -> subprocess.Popen[bytes]:
    python = (TREE / "usr/bin/python3").resolve()
    packages = TREE / f"usr/lib/memwatchd/lib/{python.name}/site-packages"
    text = START.format(packages=str(packages), arguments=["--listen", f"127.0.0.1:{port}"])
    return subprocess.Popen(["qemu-aarch64", "-L", str(TREE), str(python), "-c", text])


def asked(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return bytes(answer.read())


def wait_until_ready(port: int, daemon: subprocess.Popen[bytes]) -> float:
    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        assert daemon.poll() is None, f"it ended with {daemon.returncode}"
        try:
            asked(port, "/readyz")
        except OSError:
            time.sleep(0.5)
        else:
            return time.monotonic() - began
    raise AssertionError(f"not ready after {SECONDS:.0f} s")


def check(port: int) -> None:
    """What it says of this machine, against the kernel."""
    snapshot = json.loads(asked(port, "/api/v1/snapshot"))
    known = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert snapshot["pools"][0]["size_bytes"] == int(known.split()[1]) * 1024
    assert b"memwatch_pool_size_bytes" in asked(port, "/metrics")
    assert b"<h1" in asked(port, "/")


def main() -> None:
    make_tree(Path(sys.argv[1]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon = started(port)
    try:
        print(f"ready after {wait_until_ready(port, daemon):.0f} s under emulation")
        check(port)
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(30)
    finally:
        daemon.kill()
        daemon.wait()
    assert code == 0, f"it left with {code}"
    print("1 passed: the arm64 package runs, serves and leaves")


if __name__ == "__main__":
    main()
