"""Test that the address without a server refuses connections and cannot be taken."""

from __future__ import annotations

import socket

import pytest

from support.dead_address import dead_address, dead_port

pytestmark = pytest.mark.process


def test_dead_address_refuses_connections() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", dead_port()))


def test_dead_address_cannot_be_taken() -> None:
    """Not even for all addresses, and by a server that reuses addresses."""
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind((host, dead_port()))
    assert dead_address() == f"127.0.0.1:{dead_port()}"
