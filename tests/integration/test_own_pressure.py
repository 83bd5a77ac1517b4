"""memwatchd watches the pressure of the control group it runs in, by the variables that systemd sets."""

from __future__ import annotations

import base64
import os
import socket
import threading
from pathlib import Path

import pytest

from memwatch.core.linux.memory_events import OwnPressure
from memwatch.core.linux.wakeups import Wakeups
from support.daemon_process import open_files, running_daemon
from support.thrashing import PRESSURE, thrashing

# The threshold that systemd writes by default: 200 ms in a window of 2 s.
WRITE = base64.b64encode(b"some 200000 2000000\0").decode()


def environ_of(path: Path | str, write: str = WRITE) -> dict[str, str]:
    return {"MEMORY_PRESSURE_WATCH": str(path), "MEMORY_PRESSURE_WRITE": write}


def do_nothing() -> None:
    """Stand in for the release of memory."""


@pytest.mark.host
def test_stalls_of_a_control_group_release_memory(tmp_path: Path) -> None:
    """The real file of a group that thrashes; without control groups or PSI, the variables have no effect."""
    released: list[float] = []
    with thrashing(tmp_path) as cgroup:
        files = [folder / "memory.pressure" for folder in cgroup.folders] if cgroup else []
        path = next((file for file in files if file.exists()), tmp_path / "missing")
        own = OwnPressure(environ_of(path), lambda: released.append(1.0))
        wakeups = Wakeups([own])
        if own.event_file >= 0:
            wakeups.wait(8.0, threading.Event())
        wakeups.close()
        is_armed, exists = own.event_file >= 0, path.exists()
        own.close()

    assert bool(released) == is_armed == exists
    assert own.event_file == -1


@pytest.mark.parametrize("environ", [{}, environ_of("/dev/null"), environ_of("/dev/null", "")])
def test_without_the_variables_nothing_is_watched(environ: dict[str, str]) -> None:
    """/dev/null turns the watch off (systemd.io/PRESSURE)."""
    assert OwnPressure(environ, do_nothing).event_file == -1


@pytest.mark.parametrize("write", ["not base64!", "", WRITE])
def test_file_that_is_not_of_the_kernel_is_not_written_to(tmp_path: Path, write: str) -> None:
    """A path in the variable may name any file of the user."""
    path = tmp_path / "memory.pressure"
    path.write_text("some avg10=0.00\n")

    assert OwnPressure(environ_of(path, write), do_nothing).event_file == -1
    assert path.read_text() == "some avg10=0.00\n"


def test_socket_in_the_variable_is_not_watched(tmp_path: Path) -> None:
    """The unit's own sockets would tell memwatchd about its own levels."""
    path = tmp_path / "pressure.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        assert OwnPressure(environ_of(path), do_nothing).event_file == -1


@pytest.mark.host
def test_daemon_opens_the_file_that_systemd_names(tmp_path: Path) -> None:
    """One more descriptor on the kernel's file, if PSI exists and this user may arm it."""
    may_watch = PRESSURE.exists() and os.access(PRESSURE, os.W_OK)
    with running_daemon(tmp_path, watches_this_machine=True) as daemon:
        before = open_files(daemon.pid).count(str(PRESSURE))
    with running_daemon(tmp_path, environ=environ_of(PRESSURE), watches_this_machine=True) as daemon:
        after = open_files(daemon.pid).count(str(PRESSURE))

    assert after - before == may_watch
