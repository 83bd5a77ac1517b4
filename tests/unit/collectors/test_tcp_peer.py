"""The kernel's table of sockets names the user of a local client."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.linux.tcp_peer import TcpEnd, find_peer_uids, parse_rows, table_rows
from support.other_user import CAN_SWITCH, OTHER_UID, become_other
from support.waiting import MAX_WAIT_SECONDS, wait_until

HEAD = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
# Linux 6.18, little-endian: both ends of a connection of user 12345; the client's end half closed, after
# it was closed (user 0), in TIME_WAIT; the same port with another peer.
OURS = b"   2: 0100007F:9A33 0100007F:DA2C 01 00000000:00000001 00:00000000 00000000     0        0 2305452 1 0\n"
HELD = b"  20: 0100007F:DA2C 0100007F:9A33 01 00000000:00000000 00:00000000 00000000 12345        0 2305453 2 0\n"
HALF = b"  20: 0100007F:DA2C 0100007F:9A33 05 00000000:00000000 00:00000000 00000000 12345        0 2305453 2 0\n"
GONE = b"  20: 0100007F:DA2C 0100007F:9A33 05 00000000:00000000 03:0000175B 00000000     0        0 0 3 0\n"
WAIT = b"  21: 0100007F:DA2C 0100007F:9A33 06 00000000:00000000 03:00001000 00000000     0        0 0 3 0\n"
ELSE = b"  22: 0100007F:DA2C 0200007F:9A33 01 00000000:00000000 00:00000000 00000000     0        0 2305454 2 0\n"
CLIENT, SERVER = TcpEnd("127.0.0.1", 0xDA2C), TcpEnd("127.0.0.1", 0x9A33)
SIX = (
    b"   3: 0000000000000000FFFF00000100007F:DA2C 0000000000000000FFFF00000100007F:9A33 01 00000000:00000000 "
    b"00:00000000 00000000  1000        0 2305455 2 0\n"
)
LOOPBACK_SIX = (
    b"   4: 00000000000000000000000001000000:DA2C 00000000000000000000000001000000:9A33 01 00000000:00000000 "
    b"00:00000000 00000000  1001        0 2305456 2 0\n"
)


def find_peer_uid(client: TcpEnd, server: TcpEnd, *folders: Path) -> int | None:
    (found,) = find_peer_uids([(client, server)], *folders)
    return found


def test_users_of_many_connections_come_from_one_reading(tmp_path: Path) -> None:
    """IPv4, IPv6, an IPv4-mapped address, a connection that is gone, and one of a name."""
    net = tables(tmp_path, OURS + HELD, LOOPBACK_SIX)
    six = (TcpEnd("::1", CLIENT.port), TcpEnd("::1", SERVER.port))
    connections = [(CLIENT, SERVER), six, (SERVER, CLIENT), (CLIENT, CLIENT), (TcpEnd("name", 1), SERVER)]
    assert find_peer_uids(connections, net) == [12345, 1001, 0, None, None]
    assert find_peer_uids([], net) == []


def tables(folder: Path, four: bytes = b"", six: bytes = b"") -> Path:
    (folder / "tcp").write_bytes(HEAD + four)
    (folder / "tcp6").write_bytes(HEAD + six)
    return folder


@pytest.mark.parametrize(
    ("rows", "uid"),
    [
        (OURS + HELD + ELSE, 12345),
        (OURS + HALF, 12345),
        (OURS + GONE, None),
        (OURS + WAIT, None),
        (OURS + ELSE, None),
        (OURS, None),
        (HELD + HELD.replace(b"12345", b"    0"), None),
        (b"garbage\n" + HELD[:60] + b"\n", None),
    ],
    ids=["held", "half closed", "closed", "time wait", "another peer", "only our end", "two users", "garbage"],
)
def test_user_is_that_of_a_socket_held_by_a_process(tmp_path: Path, rows: bytes, uid: int | None) -> None:
    """A closed socket stays in the table as one of user 0, and is not root's."""
    assert find_peer_uid(CLIENT, SERVER, tables(tmp_path, rows)) == uid


def test_ipv6_sockets_and_mapped_addresses_are_found(tmp_path: Path) -> None:
    net = tables(tmp_path, b"", SIX + LOOPBACK_SIX)
    mapped = TcpEnd("::ffff:127.0.0.1", CLIENT.port)

    assert find_peer_uid(CLIENT, SERVER, net) == find_peer_uid(mapped, SERVER, net) == 1000
    assert find_peer_uid(TcpEnd("::1", CLIENT.port), TcpEnd("::1", SERVER.port), net) == 1001


def test_overflow_user_is_unknown_inside_a_user_namespace(tmp_path: Path) -> None:
    """It stands for every user that the namespace does not map."""
    row = next(iter(table_rows(CLIENT, SERVER)))
    line = b"0: %b %b 01 0:0 00:0 0 65534 0 77 1 0\n" % row[1:]
    inside = tmp_path / "uid_map"
    inside.write_text("         0     100000      65536\n")

    assert find_peer_uid(CLIENT, SERVER, tables(tmp_path, line)) == 65534
    assert find_peer_uid(CLIENT, SERVER, tmp_path, inside) is None


def test_user_is_unknown_without_tables(tmp_path: Path) -> None:
    """As on macOS, and for addresses that are names or of two families."""
    assert find_peer_uid(CLIENT, SERVER, tmp_path) is None
    assert list(table_rows(TcpEnd("localhost", 1), SERVER)) == []
    assert list(table_rows(TcpEnd("::1", 1), SERVER)) == []
    assert list(table_rows(CLIENT, TcpEnd("", 1))) == []


@given(st.binary(max_size=300))
def test_any_line_is_parsed(line: bytes) -> None:
    assert list(parse_rows([line], b"0100007F:DA2C", b"0100007F:9A33")) == []


@pytest.mark.process
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_kernel_names_the_user_of_a_real_client_until_it_closes(host: str) -> None:
    """The row of a closed socket names user 0: without its inode, another user would be root for a minute."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        going, go = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                become_other()
                connection = socket.socket(family)
                connection.connect(listener.getsockname()[:2])
                os.read(going, 1)
                connection.close()
                os.read(going, 1)
            finally:
                os._exit(0)
        accepted, _ = listener.accept()
        with accepted:
            ends = TcpEnd(*accepted.getpeername()[:2]), TcpEnd(*accepted.getsockname()[:2])
            expected = OTHER_UID if CAN_SWITCH else os.geteuid()
            assert find_peer_uid(*ends) == expected
            os.write(go, b"x")
            accepted.settimeout(MAX_WAIT_SECONDS)
            assert accepted.recv(1) == b""
            wait_until(lambda: find_peer_uid(*ends) is None, describe=lambda: "the closed socket has a user")
            time.sleep(0.05)
            assert find_peer_uid(*ends) is None
        os.write(go, b"x")
        os.waitpid(child, 0)
        os.close(go)
        os.close(going)
