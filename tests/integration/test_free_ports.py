"""Ports of tests: bound until a server has them, and given to no other program."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from support import free_ports
from support.free_ports import free_port


def bind(port: int, *options: int) -> socket.socket:
    server = socket.socket()
    for option in options:
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        server.bind(("127.0.0.1", port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT], ids=["REUSEADDR", "REUSEPORT"])
def test_server_gets_the_port_and_its_connections(option: int) -> None:
    port = free_port()
    for _ in range(2):  # a daemon may be started again there
        with bind(port, option) as server, socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"hello")
                assert accepted.recv(5) == b"hello"


def test_program_that_does_not_share_its_port_cannot_have_it() -> None:
    with pytest.raises(OSError, match="in use") as raised:
        bind(free_port())
    assert raised.value.errno == errno.EADDRINUSE


def test_kernel_gives_a_held_port_to_no_other_socket() -> None:
    held = {free_port() for _ in range(20)}
    others = []
    for _ in range(300):
        others.append(socket.socket())
        others[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        others[-1].bind(("127.0.0.1", 0))
    given = {one.getsockname()[1] for one in others}
    for one in others:
        one.close()

    assert len(held) == 20
    assert held & given == set()


def test_oldest_ports_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_ports, "MAX_HELD", 3)
    monkeypatch.setattr(free_ports, "_held", type(free_ports._held)())
    first, *others = [free_port() for _ in range(4)]

    bind(first).close()
    for one in others:
        with pytest.raises(OSError, match="in use"):
            bind(one)
    for held in free_ports._held:
        os.close(held)
