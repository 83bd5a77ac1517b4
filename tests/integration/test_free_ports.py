"""Ports of tests: each belongs to one process, and none to a connection."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.free_ports import RANGE, FreePorts, free_port
from support.paths import TESTS


def take_in_another_process(locks: Path, port: int) -> str:
    """Return the port that a process gets which may have this one or the next."""
    program = (
        "import sys; from support.free_ports import FreePorts;"
        f"print(FreePorts(open(sys.argv[1], 'ab'), range({port}, {port + 2})).take())"
    )
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", program, str(locks)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()


def test_ports_differ_and_can_be_bound() -> None:
    one, other = free_port(), free_port()

    assert one != other
    with socket.socket() as server:
        server.bind(("127.0.0.1", one))


def test_kernel_gives_the_ports_to_no_connection() -> None:
    assert free_port() < int(RANGE.read_text().split()[0])


def test_another_process_gets_another_port(tmp_path: Path) -> None:
    locks, port = tmp_path / "locks", free_port()
    with locks.open("ab") as mine:
        assert FreePorts(mine, range(port, port + 1)).take() == port
        assert take_in_another_process(locks, port) == str(port + 1)
    assert take_in_another_process(locks, port) in (str(port), str(port + 1))


def test_port_in_use_is_left_out(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as server, (tmp_path / "locks").open("ab") as locks:
        server.bind(("127.0.0.1", port))
        ports = FreePorts(locks, range(port, port + 1))

        with pytest.raises(RuntimeError, match="no free port is left"):
            ports.take()
