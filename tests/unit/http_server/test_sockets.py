"""Options of listening sockets, and descriptors that systemd passes."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from memwatchd import sockets
from memwatchd.settings.keys import TcpAddress
from memwatchd.sockets import TCP_THIN_LINEAR_TIMEOUTS, open_sockets, take_descriptors

pytestmark = pytest.mark.process


def test_accepted_socket_inherits_linear_timeouts() -> None:
    (listener,), _ = open_sockets([TcpAddress("127.0.0.1", 0)])
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            is_set = accepted.getsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS)

    assert is_set == (sys.platform == "linux")


def test_descriptors_of_systemd_are_taken_by_name_and_kept_from_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that this process got, and only once. A descriptor that is not open is left out."""
    file = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(file, True)
    monkeypatch.setattr(sockets, "FIRST_DESCRIPTOR", file)
    passed = {"LISTEN_PID": "7", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "memory-pressure"}
    of_another, unnamed = dict(passed), passed | {"LISTEN_FDNAMES": ""}

    found = [take_descriptors(passed, 7), take_descriptors(passed, 7), take_descriptors(of_another, 8)]
    is_inheritable = os.get_inheritable(file)
    os.close(file)
    closed = take_descriptors(unnamed, 7)

    assert found == [{"memory-pressure": file}, {}, {}]
    assert (passed, is_inheritable, closed) == ({}, False, {})
