"""Simulated Jetson: its tegrastats, with the given behavior.

jetson = Tegrastats.of(tmp_path, "jetson-nano-jp4")
with running_daemon(tmp_path, *jetson.roots, environ=jetson.environ) as daemon:
    jetson.does("hang")
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from msgspec import Struct

from support.paths import MACHINES, TESTS
from support.waiting import wait_until

SIMULATOR = TESTS / "simulators/tegrastats/tegrastats"


def is_alive(pid: int) -> bool:
    """Return if the process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    """Wait until the process is gone: the kernel delivers a kill asynchronously."""
    wait_until(lambda: not is_alive(pid), describe=lambda: f"process {pid} is still there")


class Tegrastats(Struct, frozen=True):
    """Program of that name with its orders and the list of its process ids, in a separate folder."""

    folder: Path
    name: str

    @classmethod
    def of(cls, folder: Path, name: str) -> Tegrastats:
        simulator = cls(folder / "tegrastats", name)
        simulator.folder.mkdir()
        orders = shlex.join(["env", f"TEGRASTATS_SIM={simulator.folder / 'orders'}", str(SIMULATOR)])
        simulator.program.write_text(f'#!/bin/sh\nexec {orders} "$@"\n')
        simulator.program.chmod(0o755)
        simulator.does("print")
        return simulator

    @property
    def program(self) -> Path:
        return self.folder / "tegrastats"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of a daemon that runs this tegrastats. Root does not take it from PATH."""
        return {"MEMWATCHD_COLLECTORS_TEGRASTATS_PATH": str(self.program)}

    @property
    def search_path(self) -> dict[str, str]:
        """Return the environment of a process with this tegrastats on PATH."""
        return {"PATH": os.pathsep.join([str(self.folder), os.environ["PATH"]])}

    @property
    def roots(self) -> list[str]:
        """Return the arguments that give memwatchd the host of this machine."""
        folder = MACHINES / self.name
        return [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]

    def does(self, what: str, line: str | None = None, deaf: bool = False) -> None:
        """Set its behavior from the next line on. The order is replaced atomically: it never reads half of one."""
        printed = MACHINES / self.name / "tegrastats"
        line = printed.read_text().strip() if line is None and printed.exists() else line
        orders = {"line": line, "does": what, "deaf": deaf}
        fresh = self.folder / "orders.new"
        fresh.write_text(json.dumps(orders))
        fresh.replace(self.folder / "orders")

    def printed(self, what: str, line: str | None = None) -> int:
        """Return how often it has behaved like this so far, with this line or with any."""
        done = self.folder / "orders.printed"
        orders = map(json.loads, done.read_text().splitlines()) if done.exists() else ()
        return sum(does == what and line in (None, said) for does, said in orders)

    def wait_until_it_does(self, what: str) -> None:
        """Wait until it has read the order for this behavior."""
        doing = self.folder / "orders.doing"
        wait_until(lambda: doing.exists() and doing.read_text() == what)

    def pids(self) -> list[int]:
        """Return the pids of all processes so far, the oldest first."""
        started = self.folder / "orders.pids"
        return [int(line) for line in started.read_text().split()] if started.exists() else []
