"""Options of listening sockets."""

from __future__ import annotations

import socket
import sys

import pytest

from memwatchd.settings.keys import TcpAddress
from memwatchd.sockets import TCP_THIN_LINEAR_TIMEOUTS, open_sockets

pytestmark = pytest.mark.process


def test_accepted_socket_inherits_linear_timeouts() -> None:
    (listener,), _ = open_sockets([TcpAddress("127.0.0.1", 0)])
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            is_set = accepted.getsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS)

    assert is_set == (sys.platform == "linux")
