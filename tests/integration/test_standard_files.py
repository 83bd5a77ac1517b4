"""Programs that are started with descriptors 0 to 2 closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.daemon_process import running_daemon
from support.waiting import MAX_WAIT_SECONDS

CLOSED = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
RUN = """
import atexit, importlib, os, pathlib, sys
found, module, *arguments = sys.argv[1:]

def note():
    names = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
    pathlib.Path(found).write_text(" ".join(names))

atexit.register(note)
sys.exit(importlib.import_module(module).main(arguments))
"""


def test_closed_descriptors_of_the_daemon_are_opened_on_dev_null(tmp_path: Path) -> None:
    """Otherwise a socket or a state file would get number 2, and the log would be written there."""
    state = f"--state-dir={tmp_path / 'state'}"
    with running_daemon(tmp_path, state, through=CLOSED) as daemon:
        names = [os.readlink(f"/proc/{daemon.pid}/fd/{number}") for number in range(3)]
        assert daemon.terminate() == 0

    assert names == ["/dev/null"] * 3


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("memwatchd.cli", ["--version"]),
        ("memwatch.cli.cli", ["backends"]),
    ],
)
def test_commands_open_closed_descriptors_on_dev_null(tmp_path: Path, module: str, arguments: list[str]) -> None:
    found = tmp_path / "found"
    command = [*CLOSED, sys.executable, "-c", RUN, str(found), module, *arguments]
    subprocess.run(command, timeout=MAX_WAIT_SECONDS, check=False)

    assert found.read_text().split() == ["/dev/null"] * 3
